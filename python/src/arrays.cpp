#include "python/src/arrays.hpp"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <array>

#include "reference/base/input_error.hpp"

namespace loratory::python {
namespace {

using reference::Dtype;

constexpr std::array kDtypes{Dtype::f32,       Dtype::f16,     Dtype::bf16,
                             Dtype::f8_e4m3fn, Dtype::f8_e5m2, Dtype::i8};
constexpr const char* kDtypeRemedy = "convert it to f32, f16, bf16, f8_e4m3fn, f8_e5m2 or i8";

Dtype dtype_of(const nb::dlpack::dtype& dtype, const std::string& name) {
  using Code = nb::dlpack::dtype_code;
  const int bits = dtype.lanes == 1 ? dtype.bits : 0;
  switch (Code(dtype.code)) {
    case Code::Float:
      if (bits == 32) return Dtype::f32;
      if (bits == 16) return Dtype::f16;
      break;
    case Code::Bfloat:
      if (bits == 16) return Dtype::bf16;
      break;
    case Code::Float8_E4M3FN:
      return Dtype::f8_e4m3fn;
    case Code::Float8_E5M2:
      return Dtype::f8_e5m2;
    case Code::Int:
      if (bits == 8) return Dtype::i8;
      break;
    default:
      break;
  }
  throw InputError(
      name, fmt::format("DLPack's type code {} with {} bits is no dtype here", dtype.code, bits),
      kDtypeRemedy);
}

void require_host(const nb::ndarray<nb::ro>& array, const std::string& name) {
  const int device = array.device_type();
  if (device == nb::device::cpu::value || device == nb::device::cuda_host::value) return;
  throw InputError(name, fmt::format("it lies on a device (DLPack's type {})", device),
                   "the reference computes on the CPU: copy it there first");
}

reference::TensorView view_of(const nb::ndarray<nb::ro>& array, const std::string& name,
                              const std::string& dtype) {
  require_host(array, name);
  reference::TensorView view;
  view.dtype = dtype.empty() ? dtype_of(array.dtype(), name) : python::dtype_of(dtype);
  if (array.itemsize() != reference::size_bytes(view.dtype)) {
    throw InputError(name, fmt::format("{} bytes an element are not those of {}", array.itemsize(),
                                       reference::name(view.dtype)));
  }
  view.data = static_cast<std::byte*>(const_cast<void*>(array.data()));
  for (size_t axis = 0; axis < array.ndim(); ++axis) {
    view.shape.push_back(int64_t(array.shape(axis)));
    view.strides.push_back(array.stride(axis));
  }
  return view;
}

nb::dlpack::dtype bits_dtype(Dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  const Code code = dtype == Dtype::f32 ? Code::Float : dtype == Dtype::i8 ? Code::Int : Code::UInt;
  return {uint8_t(code), uint8_t(8 * reference::size_bytes(dtype)), 1};
}

}  // namespace

Array Array::read(const nb::ndarray<nb::ro>& array, const std::string& name,
                  const std::string& dtype) {
  Array out;
  out.owner_ = array;
  out.view_ = view_of(array, name, dtype);
  out.name_ = name;
  return out;
}

Array Array::write(const nb::ndarray<>& array, const std::string& name, const std::string& dtype) {
  Array out = read(nb::ndarray<nb::ro>(array), name, dtype);
  out.is_writable_ = true;
  return out;
}

reference::TensorView Array::writable() const {
  if (!is_writable_)
    throw InputError(name_, "it is read-only", "give an array that can be written");
  return view_;
}

reference::Dtype dtype_of(std::string_view name) {
  for (const Dtype dtype : kDtypes) {
    if (reference::name(dtype) == name) return dtype;
  }
  throw InputError("dtype", fmt::format("\"{}\" is not a dtype", name),
                   "f32, f16, bf16, f8_e4m3fn, f8_e5m2 and i8 are");
}

NumpyArray show(const reference::ConstTensorView& view, nb::handle owner) {
  const std::vector<size_t> shape(view.shape.begin(), view.shape.end());
  return NumpyArray(view.data, shape.size(), shape.data(), owner, view.strides.data(),
                    bits_dtype(view.dtype));
}

void take_signals() {
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void add_arrays(nb::module_& m) {
  nb::class_<Array>(m, "Array", "Numbers of an array in host memory, kept alive.")
      .def_static("read", &Array::read, nb::arg("array"), nb::arg("name"), nb::arg("dtype") = "")
      .def_static("write", &Array::write, nb::arg("array"), nb::arg("name"), nb::arg("dtype") = "")
      .def_prop_ro("dtype",
                   [](const Array& a) { return std::string(reference::name(a.view().dtype)); })
      .def_prop_ro("shape", [](const Array& a) {
        nb::list shape;
        for (const int64_t size : a.view().shape) shape.append(size);
        return shape;
      });
}

}  // namespace loratory::python
