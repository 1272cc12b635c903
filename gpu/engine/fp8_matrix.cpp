#include "gpu/engine/fp8_matrix.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "reference/adapter/dequantize.hpp"
#include "reference/numerics/dtype.hpp"

namespace loratory::gpu {

using reference::ConstTensorView;
using reference::Dtype;
using reference::Matrix;
using reference::WeightScale;

namespace {

constexpr int kLeastExponent = -126;  // of a factor
constexpr float kLeastNormal = 0x1p-6F, kSubnormalsOfOne = 0x1p9F;

// The least power of two that times 448 = 0.875 · 2^9 reaches absmax; 1 for 0.
float least_factor(float absmax) {
  if (absmax == 0) return 1;
  int exponent = 0;
  const float mantissa = std::frexp(absmax, &exponent);  // in [1/2, 1)
  exponent -= mantissa <= 0.875F ? 9 : 8;
  return std::ldexp(1.0F, std::max(exponent, kLeastExponent));
}

// |value| <= 448.
uint8_t bits_of(float value) {
  const auto raw = std::bit_cast<uint32_t>(value);
  const auto sign = uint8_t(raw >> 24 & 0x80);
  const uint32_t magnitude = raw & 0x7FFFFFFF;
  if (std::bit_cast<float>(magnitude) < kLeastNormal) {
    return sign | uint8_t(std::lrint(std::bit_cast<float>(magnitude) * kSubnormalsOfOne));
  }
  const uint32_t rounded = magnitude + 0x7FFFF + (magnitude >> 20 & 1);  // 3 of 23 bits stay
  return sign | uint8_t((rounded >> 20) - ((127 - 7) << 3));
}

bool has_one_factor(const WeightScale& scale) {
  const auto& all = scale.factors;
  return !all.empty() && std::ranges::all_of(all, [&](float f) { return f == all.front(); });
}

void copy_bits(const ConstTensorView& stored, int64_t row_size, std::byte* out) {
  for (int64_t i = 0; i < stored.size(0); ++i) {
    if (stored.size(1) == 1 || stored.strides[1] == 1) {
      std::memcpy(out + i * row_size, stored[i].data, size_t(stored.size(1)));
      continue;
    }
    for (int64_t j = 0; j < stored.size(1); ++j) {
      out[i * row_size + j] = *(stored[i].data + j * stored.strides[1]);
    }
  }
}

}  // namespace

float write_fp8(const ConstTensorView& stored, const WeightScale& scale, int64_t row_size,
                std::byte* out) {
  if (stored.dtype == Dtype::f8_e4m3fn && has_one_factor(scale)) {
    copy_bits(stored, row_size, out);
    return scale.factors.front();
  }
  const Matrix<float> numbers = reference::dequantized(stored, scale);
  const float factor = least_factor(numbers.size() == 0 ? 0 : numbers.cwiseAbs().maxCoeff());
  for (Eigen::Index i = 0; i < numbers.rows(); ++i) {
    for (Eigen::Index j = 0; j < numbers.cols(); ++j) {
      out[i * row_size + j] = std::byte(bits_of(numbers(i, j) / factor));
    }
  }
  return factor;
}

}  // namespace loratory::gpu
