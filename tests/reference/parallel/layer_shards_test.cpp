// Which rows and columns each tp_rank keeps: the tables of section 3 by hand.
#include "reference/parallel/layer_shards.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/reference/parallel/test_tensors.hpp"

namespace loratory::reference {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ranges = std::vector<Range>;

ParallelConfig plain(int64_t tp_size) { return {.tp_size = tp_size, .max_lora_rank = 8}; }
ParallelConfig sharded(int64_t tp_size, int64_t max_lora_rank = 8) {
  return {.tp_size = tp_size, .fully_sharded = true, .max_lora_rank = max_lora_rank};
}

// [3.1] A whole, B by rows.
TEST(LayerShards, ColumnCutsB) {
  const LayerShards layer = column_shards(plain(4), 5, 12);
  for (int64_t p = 0; p < 4; ++p) {
    const SliceShard& shard = layer.shards[size_t(p)][0];
    EXPECT_EQ(shard.a_rows, (Range{0, 8}));
    EXPECT_EQ(shard.a_columns, (Range{0, 5}));
    EXPECT_EQ(shard.b_rows, Ranges({{3 * p, 3}}));
  }
}

// [3.3] Two halves of one tensor, N = 12, P = 2: rows 0-2 and 6-8 on tp_rank 0. A contiguous part
// would be 0-5.
TEST(LayerShards, HalvesAreCutOneByOne) {
  const LayerShards layer = fused_column_shards(plain(2), 5, {6, 6});
  EXPECT_EQ(layer.shards[0][0].b_rows, Ranges({{0, 3}, {6, 3}}));
  EXPECT_EQ(layer.shards[1][0].b_rows, Ranges({{3, 3}, {9, 3}}));
  EXPECT_EQ(layer.num_slices(), 1);
}

// [3.4] Rs comes from the buffer: R = 8, P = 4, an adapter of rank 3 has 2, 1, 0, 0 rows here.
TEST(LayerShards, FullyShardedCutsTheRankOfTheBuffer) {
  const LayerShards layer = column_shards(sharded(4), 5, 12);
  std::vector<int64_t> local_ranks;
  for (int64_t p = 0; p < 4; ++p) {
    const SliceShard& shard = layer.shards[size_t(p)][0];
    EXPECT_EQ(shard.a_rows, (Range{2 * p, 2}));
    EXPECT_EQ(shard.b_rows, Ranges({{3 * p, 3}}));
    local_ranks.push_back(shard.local_rank(3));
  }
  EXPECT_THAT(local_ranks, ElementsAre(2, 1, 0, 0));
}

// [3.5] [3.6] Each slice by itself; local offsets are sums of N_j / P.
TEST(LayerShards, MergedColumnsAreCutSliceBySlice) {
  const LayerShards layer = merged_column_shards(plain(2), 5, {8, 4, 2});
  EXPECT_EQ(layer.shards[1][0].b_rows, Ranges({{4, 4}}));
  EXPECT_EQ(layer.shards[1][1].b_rows, Ranges({{2, 2}}));
  EXPECT_EQ(layer.shards[1][2].b_rows, Ranges({{1, 1}}));
  EXPECT_EQ(layer.y_columns(1), Ranges({{4, 4}, {10, 2}, {13, 1}}));
  const LayerShards fully_sharded = merged_column_shards(sharded(2), 5, {8, 4, 2});
  for (const SliceShard& shard : fully_sharded.shards[1]) {
    EXPECT_EQ(shard.a_rows, (Range{4, 4}));
  }
}

const QkvSizes kEightTwo{.num_heads = 8, .num_kv_heads = 2, .head_dim = 4, .q_size = 32};

// [3.7] The worked example: Hq = 8, Hkv = 2, d = 4, P = 4, p = 3. q rows [24, 32), k and v [4, 8).
TEST(LayerShards, QkvWorkedExample) {
  const LayerShards layer = qkv_shards(plain(4), 16, kEightTwo);
  EXPECT_EQ(layer.shards[3][0].b_rows, Ranges({{24, 8}}));
  EXPECT_EQ(layer.shards[3][1].b_rows, Ranges({{4, 4}}));
  EXPECT_EQ(layer.shards[3][2].b_rows, Ranges({{4, 4}}));
  EXPECT_EQ(layer.y_columns(3), Ranges({{24, 8}, {36, 4}, {44, 4}}));
}

// [3.7] [3.8b] P27: P = 8 > Hkv = 2, rep = 4: tp_ranks 0-3 hold head 0, 4-7 head 1.
TEST(LayerShards, KvHeadsAreReplicated) {
  const LayerShards layer = qkv_shards(plain(8), 16, kEightTwo);
  for (int64_t p = 0; p < 8; ++p) {
    EXPECT_EQ(layer.shards[size_t(p)][0].b_rows, Ranges({{4 * p, 4}}));
    EXPECT_EQ(layer.shards[size_t(p)][1].b_rows, Ranges({{p / 4 * 4, 4}})) << p;
  }
}

// [3.7] P <= Hkv: whole heads, no replication. Fully sharded: rank rows by p for all three,
// replication or not.
TEST(LayerShards, KvHeadsAreSharedOut) {
  EXPECT_EQ(qkv_shards(plain(2), 16, kEightTwo).shards[1][2].b_rows, Ranges({{4, 4}}));
  EXPECT_EQ(qkv_shards(plain(1), 16, kEightTwo).shards[0][2].b_rows, Ranges({{0, 8}}));
  const LayerShards replicated_kv = qkv_shards(sharded(4), 16, kEightTwo);
  for (const SliceShard& shard : replicated_kv.shards[3]) {
    EXPECT_EQ(shard.a_rows, (Range{6, 2}));
  }
}

// [1.27] [3.7] A gated q output is twice the heads; its part is q_size / P.
TEST(LayerShards, GatedAttentionFollowsTheRealQOutput) {
  QkvSizes sizes = kEightTwo;
  sizes.q_size = 64;
  const LayerShards layer = qkv_shards(plain(4), 16, sizes);
  EXPECT_EQ(layer.shards[3][0].b_rows, Ranges({{48, 16}}));
  EXPECT_EQ(layer.y_columns(3), Ranges({{48, 16}, {68, 4}, {76, 4}}));
}

// [3.8] One tensor over q | k | v: q from 0, k from 32, v from 40.
TEST(LayerShards, FusedQkvWorkedExample) {
  const LayerShards layer = fused_qkv_shards(plain(4), 16, kEightTwo);
  EXPECT_EQ(layer.shards[3][0].b_rows, Ranges({{24, 8}, {36, 4}, {44, 4}}));
  EXPECT_EQ(layer.shards[0][0].b_rows, Ranges({{0, 8}, {32, 4}, {40, 4}}));
  EXPECT_EQ(layer.total_out(), 48);
}

// [3.9] [3.10]
TEST(LayerShards, RowCutsColumnsOfAAndFullyShardedRowsOfB) {
  EXPECT_EQ(row_shards(plain(2), 6, 4).shards[1][0], (SliceShard{{0, 8}, {3, 3}, {{0, 4}}}));
  EXPECT_EQ(row_shards(sharded(2), 6, 4).shards[1][0], (SliceShard{{0, 8}, {3, 3}, {{2, 2}}}));
}

// [3.13] [3.15]
TEST(LayerShards, ReplicatedAndVocabulary) {
  for (const ParallelConfig& parallel : {plain(2), sharded(2)}) {
    EXPECT_EQ(replicated_shards(parallel, 6, 4).shards[1][0],
              (SliceShard{{0, 8}, {0, 6}, {{0, 4}}}));
    EXPECT_EQ(vocab_shards(parallel, 6, 5, 8).shards[1][0], (SliceShard{{0, 8}, {0, 6}, {{4, 4}}}));
  }
}

// [3.12] Buffers take K/P in row layers and N/P in column layers, and Rs where A is cut by rows.
TEST(LayerShards, ShapesOfBuffers) {
  const auto shape = [](const LayerShards& layer, size_t slice) {
    return buffer_shapes(layer, 1, 3)[slice];
  };
  EXPECT_EQ(shape(column_shards(plain(2), 6, 4), 0), (BufferShape{{3, 8, 6}, {3, 2, 8}}));
  EXPECT_EQ(shape(column_shards(sharded(2), 6, 4), 0), (BufferShape{{3, 4, 6}, {3, 2, 8}}));
  EXPECT_EQ(shape(merged_column_shards(plain(2), 6, {4, 10}), 1),
            (BufferShape{{3, 8, 6}, {3, 5, 8}}));
  EXPECT_EQ(shape(row_shards(plain(2), 6, 4), 0), (BufferShape{{3, 8, 3}, {3, 4, 8}}));
  EXPECT_EQ(shape(row_shards(sharded(2), 6, 4), 0), (BufferShape{{3, 8, 3}, {3, 2, 8}}));
}

// [3.4] [3.7] [3.10] P28: what does not divide is named, with both numbers.
TEST(LayerShards, ErrorsNameBothNumbers) {
  const auto error = [](auto make) { return error_of(make); };
  EXPECT_EQ(error([] { column_shards(plain(4), 5, 10); }),
            "out-features: 10 is not divisible by tp_size 4");
  EXPECT_EQ(error([] {
              fused_column_shards(plain(4), 5, {4, 6});
            }),
            "out-features: 6 is not divisible by tp_size 4");
  EXPECT_EQ(error([] { column_shards(sharded(4, 6), 5, 8); }),
            "max_lora_rank: 6 is not divisible by tp_size 4");
  EXPECT_EQ(error([] { row_shards(plain(4), 6, 5); }),
            "in-features: 6 is not divisible by tp_size 4");
  EXPECT_EQ(error([] { row_shards(plain(2), 6, 5); }), "") << "B is whole";
  EXPECT_EQ(error([] { row_shards(sharded(2), 6, 5); }),
            "out-features: 5 is not divisible by tp_size 2");
  const auto qkv = [](int64_t tp_size, int64_t heads, int64_t kv_heads) {
    return error_of([&] {
      qkv_shards(
          plain(tp_size), 16,
          {.num_heads = heads, .num_kv_heads = kv_heads, .head_dim = 4, .q_size = heads * 4});
    });
  };
  EXPECT_EQ(qkv(8, 12, 2), "query heads: 12 is not divisible by tp_size 8");
  EXPECT_EQ(qkv(4, 12, 6), "key-value heads: 6 is not divisible by tp_size 4");
  EXPECT_EQ(qkv(4, 12, 3), "key-value heads: 3 do not divide tp_size 4");
  EXPECT_EQ(error([] { vocab_shards(plain(4), 6, 5, 6); }),
            "padded vocabulary: 6 is not divisible by tp_size 4");
  EXPECT_THAT(error([] { vocab_shards(plain(2), 6, 5, 4); }), HasSubstr("4 is less than 5"));
  EXPECT_THAT(error([] { column_shards(plain(0), 6, 5); }), HasSubstr("tp_size"));
  EXPECT_THAT(error([] { replicated_shards(plain(2), 0, 5); }), HasSubstr("in-features"));
}

}  // namespace
}  // namespace loratory::reference
