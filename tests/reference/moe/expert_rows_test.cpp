// The arrays over which a kernel walks rows of experts.
#include "reference/moe/expert_rows.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reference/base/input_error.hpp"

namespace loratory::reference {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Four tokens, two experts of three each; token 1 is a base token, slot 1 is off.
struct Batch {
  ExpertRows rows() const { return {2, experts, expert_map}; }
  TokenAdapters adapters() const { return {slots, enabled}; }
  std::vector<int32_t> experts{0, 2, 0, 1, 2, 0, 1, 2}, expert_map, slots{0, -1, 0, 1};
  std::vector<int32_t> enabled{1, 0, 0};
};

// [1.37] Padding has ids >= T·k, what is not in use -1, slots that are off no rows.
TEST(AlignedRows, WorkedExample) {
  const Batch batch;
  const AlignedRows aligned = align_rows(batch.rows(), batch.adapters(), 3, 4);
  // 8 rows + 3 experts x 3 of padding, in whole blocks.
  EXPECT_EQ(aligned.max_padded, 20);
  EXPECT_THAT(aligned.num_tokens_post_padded, ElementsAre(8, 0));
  // Slot 0: rows 0, 5 at expert 0, rows 1, 4 at expert 2.
  EXPECT_THAT(
      std::vector<int32_t>(aligned.sorted_token_ids.begin(), aligned.sorted_token_ids.begin() + 20),
      ElementsAre(0, 5, 8, 8, 1, 4, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8));
  EXPECT_THAT(aligned.expert_ids, ElementsAre(0, 2, -1, -1, -1, -1, -1, -1, -1, -1));
}

TEST(AlignedRows, TilesAreTheBlocksInUse) {
  const Batch batch;
  AlignedRows aligned = align_rows(batch.rows(), batch.adapters(), 3, 4);
  const auto check = [&] {
    const std::vector<ExpertTile> tiles = block_tiles(aligned);
    ASSERT_EQ(tiles.size(), 2U);
    EXPECT_EQ(tiles[0].slot, 0);
    EXPECT_EQ(tiles[0].expert, 0);
    EXPECT_THAT(tiles[0].rows, ElementsAre(0, 5));
    EXPECT_EQ(tiles[1].expert, 2);
    EXPECT_THAT(tiles[1].rows, ElementsAre(1, 4));
  };
  check();
  // [1.37] Left over from an earlier step: a base token's row, an expert, ids beyond T·k.
  aligned.sorted_token_ids[8] = 2, aligned.expert_ids[2] = 1;
  aligned.sorted_token_ids[20] = 2, aligned.expert_ids[5] = 1;
  aligned.sorted_token_ids[2] = 1000;
  check();
}

TEST(AlignedRows, ExpertsElsewhereKeepTheirBlocksAsMinusOne) {
  Batch batch;
  batch.expert_map = {-1, 0, 1};
  const AlignedRows aligned = align_rows(batch.rows(), batch.adapters(), 2, 2);
  EXPECT_THAT(std::vector<int32_t>(aligned.expert_ids.begin(), aligned.expert_ids.begin() + 3),
              ElementsAre(-1, 1, -1));
  EXPECT_EQ(aligned.num_tokens_post_padded[0], 4);
  const std::vector<ExpertTile> tiles = block_tiles(aligned);
  ASSERT_EQ(tiles.size(), 1U);
  EXPECT_EQ(tiles[0].expert, 1);
  EXPECT_THAT(tiles[0].rows, ElementsAre(1, 4));
}

TEST(AlignedRows, SingleRowsInOrder) {
  Batch batch;
  batch.enabled = {1, 1, 1};
  const std::vector<ExpertTile> tiles = single_row_tiles(batch.rows(), batch.adapters());
  std::vector<int64_t> rows;
  for (const ExpertTile& tile : tiles) rows.push_back(tile.rows.at(0));
  EXPECT_THAT(rows, ElementsAre(0, 1, 4, 5, 6, 7));
  EXPECT_EQ(tiles.back().slot, 1);
  EXPECT_EQ(tiles.back().expert, 2);
}

// Every row at its own expert, full blocks: the arrays are as long as max_padded says.
TEST(AlignedRows, TheLongestCaseFits) {
  for (const int64_t block_size : {1, 2, 3, 16}) {
    const std::vector<int32_t> experts{4, 3, 2, 1, 0}, slots{0, 0, 0, 0, 0}, enabled{1, 1};
    const ExpertRows rows{1, experts, {}};
    const AlignedRows aligned = align_rows(rows, {slots, enabled}, 5, block_size);
    EXPECT_EQ(aligned.num_tokens_post_padded[0], 5 * block_size);
    EXPECT_EQ(aligned.max_padded, 5 * block_size);
    EXPECT_EQ(block_tiles(aligned).size(), 5U);
  }
}

TEST(AlignedRows, AnEmptyBatchHasNoBlocks) {
  const std::vector<int32_t> none, enabled{1, 1};
  const AlignedRows aligned = align_rows({2, none, {}}, {none, enabled}, 3, 4);
  EXPECT_THAT(block_tiles(aligned), IsEmpty());
}

TEST(AlignedRows, BlocksHaveRows) {
  const Batch batch;
  EXPECT_THROW(align_rows(batch.rows(), batch.adapters(), 3, 0), InputError);
}

}  // namespace
}  // namespace loratory::reference
