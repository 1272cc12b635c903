#pragma once

#include "gpu/plan/kernel_shape.hpp"

// Where numbers lie in a pipeline stage of shared memory, as byte offsets of vectors: 16 bytes,
// eight neighbouring numbers of a row. ldmatrix reads one vector from each of eight rows at once,
// 128 bytes. No two of them may share a bank, so their offsets differ modulo 128.

namespace loratory::gpu {

/// Rows of kVecs vectors (2, 4 or 8). Reads eight consecutive rows at once, from row 8 i on.
template <int kVecs>
LORATORY_HOST_DEVICE constexpr int swizzle_rows(int row, int vec) {
  return (row * kVecs + (vec ^ (row * kVecs / 8 % kVecs))) * 16;
}
/// Rows of 128 bytes: the 128-byte swizzle that wgmma reads.
LORATORY_HOST_DEVICE constexpr int swizzle_128b(int row, int vec) {
  return row * 128 + (vec ^ (row % 8)) * 16;
}

/// The row of a stage that holds a rank of A in a wide shrink. Of each sixteen ranks, rank
/// 4 (g / 2) + 2 j + g % 2 lies in row 8 j + g. A thread owns the sums of g = 2 q and 2 q + 1,
/// which are then four neighbouring ranks of a token.
LORATORY_HOST_DEVICE constexpr int row_of_rank(int rank) {
  return rank / 16 * 16 + rank / 2 % 2 * 8 + rank / 4 % 4 * 2 + rank % 2;
}

/// The row of a stage that holds a column of B in a wide expand. Of each 32 columns, column
/// 8 (g / 2) + 2 j + g % 2 lies in row 8 j + g, so that a thread owns eight neighbouring columns of
/// a token. Columns two apart lie eight rows apart.
LORATORY_HOST_DEVICE constexpr int row_of_column(int column) {
  return column / 2 % 4 * 8 + column / 8 * 2 + column % 2;
}

/// The columns of B in a narrow expand, 64 columns of kVecs vectors. Neighbouring columns share a
/// line of 128 bytes. Reads every eighth column at once.
template <int kVecs>
LORATORY_HOST_DEVICE constexpr int swizzle_columns(int column, int vec) {
  return ((column * kVecs + vec) ^ column / 8) * 16;
}

}  // namespace loratory::gpu
