#pragma once

#include <cstdint>
#include <vector>

#include "reference/adapter/safetensors.hpp"

namespace loratory::reference {

/// What the bits of an fp8 matrix are worth: element (i, j) stands for bits · at(i, j), so a factor
/// dequantises [1.43]. One factor for each group_rows x group_columns elements, cut short at the
/// right and lower edge: the whole matrix, one row, or a block [1.44].
struct WeightScale {
  int64_t group_rows = 0;
  int64_t group_columns = 0;
  int64_t num_column_groups = 0;
  std::vector<float> factors;  ///< row-major; empty: the matrix is not fp8

  float at(int64_t row, int64_t column) const {
    return factors[size_t(row / group_rows * num_column_groups + column / group_columns)];
  }
};

/// Some of the rows or columns of a matrix: first, first + step, ...
struct Stride {
  int64_t first = 0;
  int64_t count = 0;
  int64_t step = 1;
};

/// The scale of a matrix [num_rows, num_columns] from its tensor in a file (F32).
///
/// Shapes [] and all ones: one factor. [num_rows]: one for each row. [G, H]: blocks. An axis of
/// n elements in G groups has groups of n if G = 1, else of the one power of two g with
/// ceil(n / g) = G; there is at most one. The last group may be smaller.
/// Errors: E_UNSUPPORTED(block_scales), any other shape.
WeightScale read_weight_scale(const StoredTensor& tensor, int64_t num_rows, int64_t num_columns);

/// The same for matrix `index` of a weight [num_matrices, num_rows, num_columns]: one factor for
/// all, or a first axis of num_matrices, also if that is 1, and behind it a shape as above.
WeightScale read_weight_scale(const StoredTensor& tensor, int64_t num_matrices, int64_t index,
                              int64_t num_rows, int64_t num_columns);

/// The scale of a part of the matrix. Where the part cuts through a group, its groups have one row
/// or column.
WeightScale part_of(const WeightScale& scale, const Stride& rows, const Stride& columns);

}  // namespace loratory::reference
