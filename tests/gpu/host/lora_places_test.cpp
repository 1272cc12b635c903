// Places in shared memory: everything has its own, and what is read at once shares no bank.
#include "gpu/kernels/lora_places.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <set>

namespace loratory::gpu {
namespace {

using Place = std::function<int(int row, int piece)>;

/// All pieces of so many rows fill as many bytes and no others.
void expect_fill(const Place& place, int num_rows, int num_pieces) {
  std::set<int> places;
  for (int row = 0; row < num_rows; ++row) {
    for (int piece = 0; piece < num_pieces; ++piece) places.insert(place(row, piece));
  }
  ASSERT_EQ(int(places.size()), num_rows * num_pieces);
  EXPECT_EQ(*places.begin(), 0);
  EXPECT_EQ(*places.rbegin(), (num_rows * num_pieces - 1) * 16);
}

/// One matrix of ldmatrix: a piece of eight rows, `step` apart.
void expect_no_shared_bank(const Place& place, int first_row, int step, int piece) {
  std::set<int> lines;
  for (int i = 0; i < 8; ++i) lines.insert(place(first_row + i * step, piece) % 128);
  EXPECT_EQ(lines.size(), 8U) << "rows from " << first_row << ", piece " << piece;
}

template <int kPieces>
void expect_tile_is_sound() {
  const Place place = place_in_tile<kPieces>;
  expect_fill(place, 32, kPieces);
  for (int piece = 0; piece < kPieces; ++piece) {
    for (int row = 0; row < 32; row += 8) expect_no_shared_bank(place, row, 1, piece);
    for (int row = 0; row < 24; ++row) {  // the next n8 tile of a fragment
      EXPECT_EQ(place(row + 8, piece), place(row, piece) + 8 * 16 * kPieces);
    }
  }
}
TEST(PlaceInTile, FillsTheTileAndSharesNoBank) {
  expect_tile_is_sound<2>();
  expect_tile_is_sound<4>();
  expect_tile_is_sound<8>();
}

// The layout that wgmma reads: bits 4 to 6 of an address differ by bits 7 to 9.
TEST(PlaceOf, IsTheSwizzleOf128Bytes) {
  for (int row = 0; row < 128; ++row) {
    for (int piece = 0; piece < 8; ++piece) {
      const int plain = row * 128 + piece * 16;
      EXPECT_EQ(place_of(row, piece), plain ^ (plain >> 3 & 0x70));
      EXPECT_EQ(place_of(row, piece), place_in_tile<8>(row, piece));
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
template <int kPieces>
void expect_equal_steps() {
  for (int column = 0; column < 32; ++column) {
    for (int i = 0; column % 8 + i < 8; i += 2) {
      for (int piece = 0; piece < kPieces; ++piece) {
        EXPECT_EQ(place_in_tile<kPieces>(row_of_column(column + i), piece),
                  place_in_tile<kPieces>(row_of_column(column), piece) + 64 * kPieces * i);
      }
    }
  }
}
TEST(RowOfColumn, ColumnsTwoApartLieEightRowsApart) {
  expect_equal_steps<2>();
  expect_equal_steps<4>();
  expect_equal_steps<8>();
}

template <int kPieces>
void expect_columns_are_sound() {
  const Place place = place_of_column<kPieces>;
  expect_fill(place, 64, kPieces);
  for (int piece = 0; piece < kPieces; ++piece) {
    for (int column = 0; column < 8; ++column) expect_no_shared_bank(place, column, 8, piece);
    for (int column = 1; column < 64; ++column) {
      if (column * kPieces % 8 == 0) continue;
      EXPECT_EQ(place(column, piece) / 128, place(column - 1, piece) / 128) << column;
    }
  }
}
TEST(PlaceOfColumn, FillsTheTileAndSharesNoBank) {
  expect_columns_are_sound<2>();
  expect_columns_are_sound<4>();
  expect_columns_are_sound<8>();
}

}  // namespace
}  // namespace loratory::gpu
