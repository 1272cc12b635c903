// Offsets in shared memory: every vector has its own, and vectors that are read at once share no
// bank.
#include "gpu/plan/swizzle.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <set>

namespace loratory::gpu {
namespace {

using Offset = std::function<int(int row, int vec)>;

/// All vectors of so many rows fill exactly as many bytes.
void expect_fill(const Offset& offset, int num_rows, int num_vecs) {
  std::set<int> offsets;
  for (int row = 0; row < num_rows; ++row) {
    for (int vec = 0; vec < num_vecs; ++vec) offsets.insert(offset(row, vec));
  }
  ASSERT_EQ(int(offsets.size()), num_rows * num_vecs);
  EXPECT_EQ(*offsets.begin(), 0);
  EXPECT_EQ(*offsets.rbegin(), (num_rows * num_vecs - 1) * 16);
}

/// One matrix of ldmatrix: a vector from each of eight rows, `step` apart.
void expect_no_shared_bank(const Offset& offset, int first_row, int step, int vec) {
  std::set<int> lines;
  for (int i = 0; i < 8; ++i) lines.insert(offset(first_row + i * step, vec) % 128);
  EXPECT_EQ(lines.size(), 8U) << "rows from " << first_row << ", vector " << vec;
}

template <int kVecs>
void expect_tile_is_sound() {
  const Offset offset = swizzle_rows<kVecs>;
  expect_fill(offset, 32, kVecs);
  for (int vec = 0; vec < kVecs; ++vec) {
    for (int row = 0; row < 32; row += 8) expect_no_shared_bank(offset, row, 1, vec);
    for (int row = 0; row < 24; ++row) {  // the next n8 tile of a fragment
      EXPECT_EQ(offset(row + 8, vec), offset(row, vec) + 8 * 16 * kVecs);
    }
  }
}
TEST(SwizzleRows, FillsTheTileAndSharesNoBank) {
  expect_tile_is_sound<2>();
  expect_tile_is_sound<4>();
  expect_tile_is_sound<8>();
}

// The layout that wgmma reads: bits 4 to 6 of an address differ by bits 7 to 9.
TEST(Swizzle128b, IsWhatWgmmaReads) {
  for (int row = 0; row < 128; ++row) {
    for (int vec = 0; vec < 8; ++vec) {
      const int plain = row * 128 + vec * 16;
      EXPECT_EQ(swizzle_128b(row, vec), plain ^ (plain >> 3 & 0x70));
      EXPECT_EQ(swizzle_128b(row, vec), swizzle_rows<8>(row, vec));
    }
  }
}

TEST(RowOfRank, GivesAThreadFourNeighbours) {
  for (int tile = 0; tile < 4; ++tile) {
    for (int j = 0; j < 2; ++j) {
      for (int g = 0; g < 8; ++g) {
        EXPECT_EQ(row_of_rank(16 * tile + 4 * (g / 2) + 2 * j + g % 2), 16 * tile + 8 * j + g);
      }
    }
  }
}

TEST(RowOfColumn, GivesAThreadEightNeighbours) {
  for (int j = 0; j < 4; ++j) {
    for (int g = 0; g < 8; ++g) {
      EXPECT_EQ(row_of_column(8 * (g / 2) + 2 * j + g % 2), 8 * j + g);
    }
  }
}

/// A lane's copies: of columns an even number apart among eight.
template <int kVecs>
void expect_equal_steps() {
  for (int column = 0; column < 32; ++column) {
    for (int i = 0; column % 8 + i < 8; i += 2) {
      for (int vec = 0; vec < kVecs; ++vec) {
        EXPECT_EQ(swizzle_rows<kVecs>(row_of_column(column + i), vec),
                  swizzle_rows<kVecs>(row_of_column(column), vec) + 64 * kVecs * i);
      }
    }
  }
}
TEST(RowOfColumn, ColumnsTwoApartLieEightRowsApart) {
  expect_equal_steps<2>();
  expect_equal_steps<4>();
  expect_equal_steps<8>();
}

template <int kVecs>
void expect_columns_are_sound() {
  const Offset offset = swizzle_columns<kVecs>;
  expect_fill(offset, 64, kVecs);
  for (int vec = 0; vec < kVecs; ++vec) {
    for (int column = 0; column < 8; ++column) expect_no_shared_bank(offset, column, 8, vec);
    for (int column = 1; column < 64; ++column) {
      if (column * kVecs % 8 == 0) continue;
      EXPECT_EQ(offset(column, vec) / 128, offset(column - 1, vec) / 128) << column;
    }
  }
}
TEST(SwizzleColumns, FillsTheTileAndSharesNoBank) {
  expect_columns_are_sound<2>();
  expect_columns_are_sound<4>();
  expect_columns_are_sound<8>();
}

}  // namespace
}  // namespace loratory::gpu
