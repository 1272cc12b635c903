#include "reference/quantized/scaled_product.hpp"

#include <algorithm>

namespace loratory::reference {
namespace {

float weight_factor(const ConstTensorView& scale, int64_t row, int64_t group,
                    const BlockSize& block) {
  if (scale.num_axes() == 0) return float(scale.get());
  if (scale.num_axes() == 1) return float(scale.get(row));
  return float(scale.get(row / block.n, group));
}

float activation_factor(const ConstTensorView& scale, int64_t t, int64_t group) {
  return float(scale.num_axes() == 0 ? scale.get() : scale.get(t, group));
}

// Sums of i8 products are integers below 2^53: exact in float64, whatever the order.
Vector<float> multiply_bits(const Matrix<float>& bits, const Vector<float>& v, bool is_integer) {
  if (!is_integer) return multiply_in_order(bits, v);
  return multiply_in_order<double>(bits.cast<double>(), v.cast<double>()).cast<float>();
}

}  // namespace

int64_t ScaledWeights::num_products() const {
  int64_t sum = 0;
  for (const Group& group : groups) sum += group.bits.size();
  return sum;
}

ScaledWeights read_scaled(const ConstTensorView& bits, const ConstTensorView& scale,
                          int64_t num_rows, int64_t num_columns, const BlockSize& block) {
  const auto all = read_matrix<float>(bits, num_rows, num_columns);
  ScaledWeights weights{{}, block.k > 0, bits.dtype};
  const int64_t width = block.k > 0 ? block.k : num_columns;
  for (int64_t begin = 0; begin < num_columns; begin += width) {
    const auto group = int64_t(weights.groups.size());
    Vector<float> factors(num_rows);
    for (int64_t i = 0; i < num_rows; ++i) factors(i) = weight_factor(scale, i, group, block);
    weights.groups.push_back(
        {all.middleCols(begin, std::min(width, num_columns - begin)), std::move(factors)});
  }
  return weights;
}

Vector<float> multiply_scaled(const ScaledWeights& weights, const ConstTensorView& v,
                              const std::optional<ConstTensorView>& v_scale, int64_t t) {
  const bool is_integer = weights.dtype == Dtype::i8 && v.dtype == Dtype::i8;
  Vector<float> sum =
      Vector<float>::Zero(weights.groups.empty() ? 0 : weights.groups[0].bits.rows());
  int64_t begin = 0, index = 0;
  for (const ScaledWeights::Group& group : weights.groups) {
    Vector<float> v_group(group.bits.cols());
    for (int64_t c = 0; c < v_group.size(); ++c) v_group(c) = float(v.get(t, begin + c));
    Vector<float> part = multiply_bits(group.bits, v_group, is_integer);
    if (v_scale) part *= activation_factor(*v_scale, t, index);
    part = part.cwiseProduct(group.factors).eval();
    sum = weights.is_block ? Vector<float>(sum + part) : part;
    begin += group.bits.cols();
    ++index;
  }
  return sum;
}

}  // namespace loratory::reference
