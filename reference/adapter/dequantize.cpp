#include "reference/adapter/dequantize.hpp"

namespace loratory::reference {

Matrix<float> dequantized(const ConstTensorView& bits, const WeightScale& scale) {
  auto matrix = read_matrix<float>(bits, bits.size(0), bits.size(1));
  if (scale.factors.empty()) return matrix;
  for (Eigen::Index i = 0; i < matrix.rows(); ++i) {
    for (Eigen::Index j = 0; j < matrix.cols(); ++j) matrix(i, j) *= scale.at(i, j);
  }
  return matrix;
}

Matrix<float> dequantized_a(const LoraModule& module) {
  return dequantized(module.a, module.a_scale);
}

Matrix<float> dequantized_b(const LoraModule& module) {
  return dequantized(module.b, module.b_scale);
}

}  // namespace loratory::reference
