#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reference/numerics/tensor.hpp"

// What the files of the module share. Every function releases the GIL while it computes.
namespace loratory::python {

namespace nb = nanobind;

/// Numbers of somebody else's array in host memory, which stays alive with this.
class Array {
 public:
  /// `dtype` is that of the numbers where the array has their bits as unsigned integers (numpy has
  /// no bf16 that DLPack can carry); empty: the array says it. Throws InputError at `name`.
  static Array read(const nb::ndarray<nb::ro>& array, const std::string& name,
                    const std::string& dtype);
  static Array write(const nb::ndarray<>& array, const std::string& name, const std::string& dtype);

  reference::ConstTensorView view() const { return view_; }
  /// Throws InputError if it was made by read().
  reference::TensorView writable() const;

 private:
  nb::ndarray<nb::ro> owner_;
  reference::TensorView view_;
  std::string name_;
  bool is_writable_ = false;
};

using Arrays = std::vector<const Array*>;
using Int32s = std::vector<int32_t>;
using Floats = std::vector<float>;
using NumpyArray = nb::ndarray<nb::numpy, nb::ro>;

/// Throws InputError: "dtype: ...".
reference::Dtype dtype_of(std::string_view name);

/// What `compute` gives, computed without the GIL. It may touch no object of Python.
template <typename Compute>
auto without_gil(const Compute& compute) {
  const nb::gil_scoped_release no_gil;
  return compute();
}

/// A numpy array of the bits (of the numbers, if they are f32 or i8) that shows what `owner` owns.
NumpyArray show(const reference::ConstTensorView& view, nb::handle owner);

/// A numpy array that owns its numbers.
template <typename T>
nb::ndarray<nb::numpy, T> to_numpy(std::vector<T> values, std::vector<size_t> shape) {
  auto* const kept = new std::vector<T>(std::move(values));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T>(kept->data(), shape.size(), shape.data(), owner);
}
template <typename T>
nb::ndarray<nb::numpy, T> to_numpy(std::vector<T> values) {
  const size_t size = values.size();
  return to_numpy(std::move(values), {size});
}

/// Lets Python handle signals; throws its exception if one did (KeyboardInterrupt). With or without
/// the GIL.
void take_signals();

void add_arrays(nb::module_& m);
void add_operations(nb::module_& m);
void add_quantized(nb::module_& m);
void add_experts(nb::module_& m);
void add_bounds(nb::module_& m);
void add_layouts(nb::module_& m);
void add_adapters(nb::module_& m);
void add_traces(nb::module_& m);
void add_check(nb::module_& m);
void add_cases(nb::module_& m);

}  // namespace loratory::python
