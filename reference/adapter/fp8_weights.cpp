#include "reference/adapter/fp8_weights.hpp"

#include <algorithm>
#include <cmath>

#include "reference/adapter/dequantize.hpp"
#include "reference/numerics/dtype.hpp"

namespace loratory::reference {
namespace {

constexpr Dtype kFormat = Dtype::f8_e4m3fn;

bool has_one_factor(const WeightScale& scale) {
  return !scale.factors.empty() && std::ranges::all_of(scale.factors, [&](float factor) {
    return factor == scale.factors.front();
  });
}

Fp8Weights kept(const ConstTensorView& stored, float factor) {
  Fp8Weights out{stored.size(0), stored.size(1), {}, factor};
  for (int64_t i = 0; i < out.num_rows; ++i) {
    for (int64_t j = 0; j < out.num_columns; ++j) {
      out.bits.push_back(uint8_t(encode(kFormat, stored.get(i, j))));
    }
  }
  return out;
}

float least_factor(float absmax) {
  float factor = 1;
  if (absmax == 0) return factor;
  const auto largest = float(largest_finite(kFormat));
  while (largest * factor < absmax) factor *= 2;
  while (factor > 0x1p-126F && largest * (factor / 2) >= absmax) factor /= 2;
  return factor;
}

Fp8Weights rounded(const Matrix<float>& numbers) {
  Fp8Weights out{numbers.rows(), numbers.cols(), {}, 1};
  out.factor = least_factor(numbers.size() == 0 ? 0 : numbers.cwiseAbs().maxCoeff());
  for (Eigen::Index i = 0; i < numbers.rows(); ++i) {
    for (Eigen::Index j = 0; j < numbers.cols(); ++j) {
      out.bits.push_back(uint8_t(encode(kFormat, double(numbers(i, j)) / double(out.factor))));
    }
  }
  return out;
}

Fp8Weights fp8_weights(const ConstTensorView& stored, const WeightScale& scale) {
  const bool is_kept = stored.dtype == kFormat && has_one_factor(scale);
  return is_kept ? kept(stored, scale.factors.front()) : rounded(dequantized(stored, scale));
}

}  // namespace

Matrix<float> Fp8Weights::numbers() const {
  Matrix<float> out(num_rows, num_columns);
  for (Eigen::Index i = 0; i < out.rows(); ++i) {
    for (Eigen::Index j = 0; j < out.cols(); ++j) {
      out(i, j) = float(decode(kFormat, bits[size_t(i * num_columns + j)])) * factor;
    }
  }
  return out;
}

Fp8Weights fp8_a(const LoraModule& module) { return fp8_weights(module.a, module.a_scale); }
Fp8Weights fp8_b(const LoraModule& module) { return fp8_weights(module.b, module.b_scale); }

}  // namespace loratory::reference
