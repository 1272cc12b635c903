#include "reference/engines/stacked.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reference/base/input_error.hpp"
#include "reference/lora/check_args.hpp"
#include "reference/lora/row_arithmetic.hpp"

namespace loratory::reference {
namespace {

void check_part(std::string_view place, const SlotRows& part, int64_t num_slots, int64_t num_rows,
                int64_t max_rank) {
  const auto fail = [&](std::string_view what, int64_t value) {
    throw InputError(place, fmt::format("{} {} lies outside", what, value));
  };
  if (part.slot < 0 || part.slot >= num_slots) fail("slot", part.slot);
  if (part.rank < 0 || part.rank > max_rank) fail("rank", part.rank);
  for (const int32_t row : part.rows) {
    if (row < 0 || row >= num_rows) fail("row", row);
  }
}

void check_offsets(std::span<const int64_t> output_offset, const ConstTensorView& b,
                   const TensorView& y) {
  const bool good = output_offset.size() >= 2 && output_offset.front() >= 0 &&
                    std::is_sorted(output_offset.begin(), output_offset.end()) &&
                    output_offset.back() <= std::min(b.size(1), y.size(1));
  if (!good) throw InputError("output_offset", "does not divide the rows of b and columns of y");
}

}  // namespace

void stacked_shrink(const ConstTensorView& x, const ConstTensorView& a, int64_t num_slices,
                    const SlotRows& part, const TensorView& h) {
  check_shape("x", x, {kAnySize, kAnySize});
  check_shape("a", a, {kAnySize, kAnySize, x.size(1)});
  check_shape("h", h, {x.size(0), kAnySize});
  check_same_dtype("a", a.dtype, "x", x.dtype);
  check_wide_dtype("x", x.dtype);
  if (num_slices < 1) throw InputError("num_slices", "is less than 1");
  check_part("shrink", part, a.size(0), x.size(0), std::min(a.size(1), h.size(1)) / num_slices);
  for (int64_t i = 0; i < num_slices && part.rank > 0; ++i) {
    const int64_t begin = i * part.rank, end = begin + part.rank;
    shrink_rows({.x = x,
                 .a = a[part.slot].part(0, begin, end),
                 .rank = part.rank,
                 .h = h.part(1, begin, end)},
                part.rows);
  }
}

void stacked_expand(const ConstTensorView& h, const ConstTensorView& b,
                    std::span<const int64_t> output_offset, const SlotRows& part,
                    const NumericMode& mode, const TensorView& y) {
  check_shape("y", y, {kAnySize, kAnySize});
  check_shape("h", h, {y.size(0), kAnySize});
  check_shape("b", b, {kAnySize, kAnySize, kAnySize});
  check_wide_dtype("b", b.dtype);
  check_wide_dtype("y", y.dtype);
  check_offsets(output_offset, b, y);
  if (!std::isfinite(part.scaling)) throw InputError("scaling", "is not finite");
  const auto num_slices = int64_t(output_offset.size()) - 1;
  check_part("expand", part, b.size(0), y.size(0), std::min(b.size(2), h.size(1) / num_slices));
  for (int64_t i = 0; i < num_slices && part.rank > 0; ++i) {
    const int64_t first = output_offset[size_t(i)], end = output_offset[size_t(i) + 1];
    expand_rows({.h = h.part(1, i * part.rank, (i + 1) * part.rank),
                 .b = b[part.slot].part(0, first, end),
                 .rank = part.rank,
                 .scaling = part.scaling,
                 .offset = first,
                 .mode = mode,
                 .y = y},
                part.rows);
  }
}

Tensor stacked_buffer(const ConstTensorView& x, const StackedWeights& weights,
                      const NumericMode& mode) {
  check_shape("x", x, {kAnySize, kAnySize});
  check_shape("a", weights.a, {kAnySize, kAnySize, kAnySize});
  const bool as_x = mode.h == IntermediateMode::store_as_x;
  return Tensor(as_x ? x.dtype : Dtype::f32, {x.size(0), weights.a.size(1)});
}

}  // namespace loratory::reference
