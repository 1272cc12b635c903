#include "reference/quantized/quantize.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "reference/base/input_error.hpp"
#include "reference/lora/check_args.hpp"
#include "reference/quantized/check_quantized.hpp"

namespace loratory::reference {
namespace {

void check(const QuantizeArgs& args) {
  check_shape("quantize: v", args.v, {int64_t(args.widths.size()), kAnySize});
  check_wide_dtype("quantize: v", args.v.dtype);
  if (args.group_k < 0) throw InputError("quantize: group_k", "is negative");
  check_shape("quantize: bits", args.bits, args.v.shape);
  if (!is_quantized(args.bits.dtype)) {
    throw InputError("quantize: bits", fmt::format("has dtype {}", name(args.bits.dtype)),
                     "use f8_e4m3fn, f8_e5m2 or i8");
  }
  check_activation_scale("quantize: scale", args.scale, args.bits, {}, args.group_k);
  for (const int32_t width : args.widths) {
    if (width >= 0 && width <= args.v.size(1)) continue;
    throw InputError("quantize: widths",
                     fmt::format("{} is outside [0, {}]", width, args.v.size(1)));
  }
}

// Numbers under one factor: of one row, or of all.
struct Group {
  int64_t first_row, last_row, begin, end;
};

int64_t end_of(const QuantizeArgs& args, const Group& group, int64_t row) {
  return std::min(group.end, int64_t(args.widths[size_t(row)]));
}

float largest_number(const QuantizeArgs& args, const Group& group) {
  float largest = 0;
  for (int64_t t = group.first_row; t < group.last_row; ++t) {
    for (int64_t c = group.begin; c < end_of(args, group, t); ++c) {
      const auto magnitude = float(std::fabs(args.v.get(t, c)));
      if (std::isfinite(magnitude)) largest = std::max(largest, magnitude);
    }
  }
  return largest;
}

// Writes the bits; returns the factor.
float quantize_group(const QuantizeArgs& args, const Group& group) {
  const float absmax = largest_number(args, group);
  const float scale = quantization_scale(absmax, args.bits.dtype);
  for (int64_t t = group.first_row; t < group.last_row; ++t) {
    for (int64_t c = group.begin; c < end_of(args, group, t); ++c) {
      const auto v = float(args.v.get(t, c));
      // -0.0 has a sign bit; a row of zeros has none set.
      const float quotient = absmax == 0 && v == 0 ? 0.0F : v / scale;
      const uint32_t bits = encode(args.bits.dtype, quotient, Overflow::saturate);
      *args.bits.address(t, c) = std::byte(bits);
    }
  }
  return scale;
}

}  // namespace

float quantization_scale(float absmax, Dtype dtype) {
  if (absmax == 0) return 1;
  return std::max(absmax / float(largest_finite(dtype)), 0x1p-126F);
}

void quantize(const QuantizeArgs& args) {
  check(args);
  const int64_t num_rows = args.v.size(0), num_columns = args.v.size(1);
  if (args.scale.num_axes() == 0) {
    args.scale.set(quantize_group(args, {0, num_rows, 0, num_columns}));
    return;
  }
  const int64_t width = args.group_k > 0 ? args.group_k : num_columns;
  for (int64_t t = 0; t < num_rows; ++t) {
    for (int64_t g = 0; g < args.scale.size(1); ++g) {
      const int64_t begin = g * width;
      args.scale.set(quantize_group(args, {t, t + 1, begin, std::min(begin + width, num_columns)}),
                     t, g);
    }
  }
}

QuantizedMatrix quantize_channels(const ConstTensorView& weight, Dtype dtype) {
  check_shape("quantize_channels: weight", weight, {kAnySize, kAnySize});
  for (int64_t n = 0; n < weight.size(0); ++n) {
    for (int64_t k = 0; k < weight.size(1); ++k) {
      if (std::isfinite(weight.get(n, k))) continue;
      throw InputError(fmt::format("quantize_channels: weight[{}, {}]", n, k), "is not finite");
    }
  }
  QuantizedMatrix out{Tensor(dtype, weight.shape), Tensor(Dtype::f32, {weight.size(0)})};
  const std::vector<int32_t> widths(size_t(weight.size(0)), int32_t(weight.size(1)));
  const TensorView by_row{Dtype::f32, out.scale.view().data, {weight.size(0), 1}, {1, 1}};
  quantize({.v = weight, .widths = widths, .bits = out.bits.view(), .scale = by_row});
  return out;
}

}  // namespace loratory::reference
