#include "reference/lora/check_args.hpp"

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "reference/base/input_error.hpp"

namespace loratory::reference {
namespace {

std::string text(std::span<const int64_t> shape) {
  std::vector<std::string> sizes;
  for (const int64_t size : shape) {
    sizes.push_back(size == kAnySize ? "any" : fmt::format("{}", size));
  }
  return fmt::format("[{}]", fmt::join(sizes, ", "));
}

std::string element(std::string_view place, size_t index) {
  return fmt::format("{}[{}]", place, index);
}

}  // namespace

void check_shape(std::string_view place, const ConstTensorView& view,
                 std::initializer_list<int64_t> shape) {
  check_shape(place, view, std::span(shape.begin(), shape.size()));
}

void check_shape(std::string_view place, const ConstTensorView& view,
                 std::span<const int64_t> shape) {
  bool same = view.num_axes() == shape.size();
  for (size_t axis = 0; same && axis < shape.size(); ++axis) {
    const int64_t expected = shape[axis];
    same = expected == kAnySize || view.size(axis) == expected;
  }
  if (same) return;
  throw InputError(place, "has shape " + text(view.shape), "expected " + text(shape));
}

void check_wide_dtype(std::string_view place, Dtype dtype) {
  if (!is_quantized(dtype)) return;
  throw InputError(place, fmt::format("has dtype {} and no scale tensors", name(dtype)),
                   "use f32, f16 or bf16");
}

void check_output(std::string_view function, const TensorView& y, int64_t num_tokens,
                  int64_t offset_start, int64_t num_columns) {
  const std::string place = std::string(function) + ": y";
  check_shape(place, y, {num_tokens, kAnySize});
  check_wide_dtype(place, y.dtype);
  if (offset_start < 0) throw InputError(std::string(function) + ": offset_start", "is negative");
  if (num_columns <= y.size(1) - offset_start) return;
  // The end of an offset near 2^63 fits into 64 bits without a sign alone.
  const uint64_t end = uint64_t(offset_start) + uint64_t(num_columns);
  throw InputError(place, fmt::format("has {} columns, the slices end at {}", y.size(1), end));
}

void check_same_dtype(std::string_view place, Dtype dtype, std::string_view other, Dtype expected) {
  if (dtype == expected) return;
  throw InputError(place,
                   fmt::format("has dtype {}, {} has {}", name(dtype), other, name(expected)));
}

void check_ranks(std::string_view place, std::span<const int32_t> ranks, int64_t max_loras,
                 int64_t max_rank) {
  if (int64_t(ranks.size()) != max_loras) {
    throw InputError(place, fmt::format("has {} ranks for {} slots", ranks.size(), max_loras));
  }
  for (size_t s = 0; s < ranks.size(); ++s) {
    if (ranks[s] >= 0 && ranks[s] <= max_rank) continue;
    throw InputError(element(place, s),
                     fmt::format("rank {} is outside [0, {}]", ranks[s], max_rank));
  }
}

void check_scalings(std::string_view place, std::span<const float> scalings, int64_t max_loras) {
  if (int64_t(scalings.size()) != max_loras) {
    throw InputError(place,
                     fmt::format("has {} scalings for {} slots", scalings.size(), max_loras));
  }
  for (size_t s = 0; s < scalings.size(); ++s) {
    if (!std::isfinite(scalings[s])) throw InputError(element(place, s), "is not finite");
  }
}

}  // namespace loratory::reference
