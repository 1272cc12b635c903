#pragma once

#include <Eigen/Core>

#include "reference/numerics/rows.hpp"

namespace loratory::reference {

/// Fewer products than this are done by one thread; the result is the same.
inline constexpr int64_t kMinParallelProducts = 1 << 16;

template <typename Real>
using Matrix = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic>;
template <typename Real>
using Vector = Eigen::Matrix<Real, Eigen::Dynamic, 1>;

/// The leading `num_rows` x `num_columns` of a tensor of two axes, exact for every Dtype.
/// Nothing outside is read.
template <typename Real>
Matrix<Real> read_matrix(const ConstTensorView& view, int64_t num_rows, int64_t num_columns) {
  Matrix<Real> matrix(num_rows, num_columns);
  Vector<Real> row(num_columns);
  for (int64_t i = 0; i < num_rows; ++i) {
    read_row(view, i, 0, std::span(row.data(), size_t(num_columns)));
    matrix.row(i) = row;
  }
  return matrix;
}

template <typename Real>
Vector<Real> read_vector(const ConstTensorView& view, int64_t size) {
  LORATORY_ASSERT(view.num_axes() == 1 && size <= view.size(0), "a part of the vector");
  Vector<Real> vector(size);
  load_elements(view.dtype, view.data, view.strides[0], std::span(vector.data(), size_t(size)));
  return vector;
}

/// out[i] = sum_j matrix(i, j)·vector(j), j ascending from +0, every product and sum rounded to
/// Real: the exact order that [1.16] defines. Vectorised over i, which leaves the order as it is.
template <typename Real>
Vector<Real> multiply_in_order(const Matrix<Real>& matrix, const Vector<Real>& vector) {
  Vector<Real> out = Vector<Real>::Zero(matrix.rows());
  for (Eigen::Index j = 0; j < matrix.cols(); ++j) out += matrix.col(j) * vector(j);
  return out;
}

}  // namespace loratory::reference
