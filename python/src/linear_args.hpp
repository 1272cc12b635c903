#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "python/src/arrays.hpp"
#include "reference/lora/linear.hpp"

// Arguments of the reference from those of Python. The spans show the vectors that were given.
namespace loratory::python {

using Int32Lists = std::vector<Int32s>;
using FloatLists = std::vector<Floats>;

/// Names of the three parts of reference::NumericMode. Throws InputError: "mode: ...".
struct ModeNames {
  std::string h, sum, scale;
};
reference::NumericMode mode_of(const ModeNames& names);

/// Throws InputError unless the lists have an entry for each of `num_slices`.
void require_slices(size_t num_slices, std::initializer_list<size_t> others);

reference::LinearArgs linear_args(const Array& x, const Arrays& a, const Arrays& b,
                                  const Int32Lists& ranks, const FloatLists& scalings,
                                  const Int32s& slots, const reference::TensorView& y);

inline std::vector<reference::ConstTensorView> views_of(const Arrays& arrays) {
  std::vector<reference::ConstTensorView> views;
  for (const Array* array : arrays) views.push_back(array->view());
  return views;
}

/// Calls run(begin, end) for parts of [0, num_rows), each of about a tenth of a second, and takes
/// signals in between: row t of the reference depends on x[t], its slot's weights and the layer
/// alone, so the parts have the bits of the whole. One part if the work is short.
template <typename Run>
void run_in_parts(int64_t num_rows, double num_products, Run run) {
  constexpr double kProductsOfPart = 1 << 28;
  const double limit = double(std::max<int64_t>(num_rows, 1));
  const int64_t num_parts = int64_t(std::clamp(num_products / kProductsOfPart, 1.0, limit));
  for (int64_t part = 0; part < num_parts; ++part) {
    run(num_rows * part / num_parts, num_rows * (part + 1) / num_parts);
    take_signals();
  }
}

/// Rows [begin, end) of a linear layer.
inline reference::LinearArgs rows_of(reference::LinearArgs args, int64_t begin, int64_t end) {
  args.x = args.x.part(0, begin, end);
  args.slots = args.slots.subspan(size_t(begin), size_t(end - begin));
  args.y = args.y.part(0, begin, end);
  return args;
}

/// Products of all rows, at the ranks of the buffers.
double num_products(const reference::LinearArgs& args);

}  // namespace loratory::python
