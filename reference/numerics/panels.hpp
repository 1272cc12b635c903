#pragma once

#include <algorithm>
#include <vector>

#include "reference/numerics/tensor.hpp"

namespace loratory::reference {

/// A matrix in fp32 in panels of sixteen rows, so that sixteen sums can grow side by side.
/// Element (i, j) is panel(i / 16)[16·j + i % 16]; rows past the last are 0.
class Panels {
 public:
  static constexpr int64_t kRows = 16;

  Panels(int64_t num_rows, int64_t num_columns)
      : num_panels_((num_rows + kRows - 1) / kRows),
        num_columns_(num_columns),
        values_(size_t(num_panels_ * num_columns * kRows)) {}

  int64_t num_panels() const { return num_panels_; }
  int64_t num_columns() const { return num_columns_; }
  float* panel(int64_t p) { return values_.data() + p * num_columns_ * kRows; }
  const float* panel(int64_t p) const { return values_.data() + p * num_columns_ * kRows; }
  std::vector<float>& values() { return values_; }

 private:
  int64_t num_panels_;
  int64_t num_columns_;
  std::vector<float> values_;
};

/// The leading `num_rows` x `num_columns` of a tensor of two axes, exact for every Dtype.
/// Nothing outside is read.
Panels read_panels(const ConstTensorView& view, int64_t num_rows, int64_t num_columns);

/// [M M]: every column twice, first all of them and then all of them again.
Panels side_by_side_twice(const Panels& matrix);

/// out[v, i] = sum_j matrix(i, j)·vectors[v, j], j ascending from +0, every product and sum rounded
/// to fp32: the bits of multiply_in_order(Matrix<float>, Vector<float>) for each v.
/// Shapes   vectors [num_vectors, num_columns], out [num_vectors, 16·num_panels], without gaps.
/// Cost     O(num_vectors · I · J), each panel read once for four vectors.
void multiply_in_order(const Panels& matrix, const float* vectors, int64_t num_vectors, float* out);

/// The same as other machines do it, so that their bits can be tested here.
void multiply_in_order_without_avx2(const Panels& matrix, const float* vectors, int64_t num_vectors,
                                    float* out);

}  // namespace loratory::reference
