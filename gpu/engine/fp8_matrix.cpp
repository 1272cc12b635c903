#include "gpu/engine/fp8_matrix.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "reference/numerics/dtype.hpp"
#include "reference/numerics/rows.hpp"

namespace loratory::gpu {

using reference::ConstTensorView;
using reference::Dtype;

namespace {

constexpr int kLeastExponent = -126;  // of a factor
constexpr float kSubnormalsOfOne = 0x1p9F;
constexpr float kLeastNormal = 0x1p-6F * kSubnormalsOfOne;
constexpr float kUnitsInLastPlace = 0x1p23F;  // a sum with it is rounded to an integer

// The least power of two that times 448 = 0.875 · 2^9 reaches absmax; 1 for 0.
float least_factor(float absmax) {
  if (absmax == 0) return 1;
  int exponent = 0;
  const float mantissa = std::frexp(absmax, &exponent);  // in [1/2, 1)
  exponent -= mantissa <= 0.875F ? 9 : 8;
  return std::ldexp(1.0F, std::max(exponent, kLeastExponent));
}

// |value| <= 448. Without a branch, so that many are rounded at once.
uint8_t bits_of(float value) {
  const auto raw = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = raw & 0x7FFFFFFF;
  const float scaled = std::bit_cast<float>(magnitude) * kSubnormalsOfOne;
  const uint32_t subnormal = std::bit_cast<uint32_t>(scaled + kUnitsInLastPlace) -
                             std::bit_cast<uint32_t>(kUnitsInLastPlace);
  const uint32_t rounded = magnitude + 0x7FFFF + (magnitude >> 20 & 1);  // 3 of 23 bits stay
  const uint32_t normal = (rounded >> 20) - ((127 - 7) << 3);
  return uint8_t((raw >> 24 & 0x80) | (scaled < kLeastNormal ? subnormal : normal));
}

bool has_one_factor(const reference::WeightScale& scale) {
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

// Of row `row`, as reference::dequantized() has them.
void read_numbers(const ConstTensorView& stored, const reference::WeightScale& scale, int64_t row,
                  std::span<float> out) {
  reference::read_row(stored, row, 0, out);
  if (scale.factors.empty()) return;
  for (size_t j = 0; j < out.size(); ++j) out[j] *= scale.at(row, int64_t(j));
}

float largest(std::span<const float> numbers) {
  float out = 0;
  for (const float v : numbers) out = std::max(out, std::fabs(v));
  return out;
}

}  // namespace

float write_fp8(const ConstTensorView& stored, const reference::WeightScale& scale,
                int64_t row_size, std::byte* out) {
  if (stored.dtype == Dtype::f8_e4m3fn && has_one_factor(scale)) {
    copy_bits(stored, row_size, out);
    return scale.factors.front();
  }
  std::vector<float> row(size_t(stored.size(1)));
  float absmax = 0;
  for (int64_t i = 0; i < stored.size(0); ++i) {
    read_numbers(stored, scale, i, row);
    absmax = std::max(absmax, largest(row));
  }
  const float factor = least_factor(absmax);
  const float inverse = 1 / factor;  // a power of two
  for (int64_t i = 0; i < stored.size(0); ++i) {
    read_numbers(stored, scale, i, row);
    for (size_t j = 0; j < row.size(); ++j) {
      out[size_t(i * row_size) + j] = std::byte(bits_of(row[j] * inverse));
    }
  }
  return factor;
}

}  // namespace loratory::gpu
