#pragma once

#include "gpu/kernels/lora_shape.hpp"

// Where numbers lie in a stage of shared memory, in bytes: pieces of 16, eight neighbouring numbers
// of a row. ldmatrix reads eight rows' pieces at once, 128 bytes, and no two of them may share
// banks: their places differ modulo 128.

namespace loratory::gpu {

/// Of rows of kPieces pieces (2, 4 or 8), any eight in a row of which are read at once from 8 i on.
template <int kPieces>
LORATORY_BOTH constexpr int place_in_tile(int row, int piece) {
  return (row * kPieces + (piece ^ (row * kPieces / 8 % kPieces))) * 16;
}
/// Of rows of 128 bytes. wgmma reads them as they lie.
LORATORY_BOTH constexpr int place_of(int row, int piece) {
  return row * 128 + (piece ^ (row % 8)) * 16;
}

/// A rank of a block of A in prefill: rank 4 (g / 2) + 2 j + g % 2 of sixteen lies in row 8 j + g,
/// so that a thread, whose sums are of g = 2 q and 2 q + 1, holds four neighbouring ranks of a
/// token.
LORATORY_BOTH constexpr int row_of_rank(int rank) {
  return rank / 16 * 16 + rank / 2 % 2 * 8 + rank / 4 % 4 * 2 + rank % 2;
}

/// A column of a tile of 32 of B in prefill: column 8 (g / 2) + 2 j + g % 2 lies in row 8 j + g, so
/// that a thread holds eight neighbouring columns of a token. Columns two apart lie eight rows
/// apart.
LORATORY_BOTH constexpr int row_of_column(int column) {
  return column / 2 % 4 * 8 + column / 8 * 2 + column % 2;
}

/// A column of a tile of 64 of B in decode, of kPieces pieces. Neighbouring columns share a line of
/// 128 bytes; every eighth column is read at once.
template <int kPieces>
LORATORY_BOTH constexpr int place_of_column(int column, int piece) {
  return ((column * kPieces + piece) ^ column / 8) * 16;
}

}  // namespace loratory::gpu
