// Checkpoint tensors over the slices of a packed layer [1.25], and the parts cut out of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/reference/parallel/test_tensors.hpp"

namespace loratory::reference {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto kMisaligned = "packed LoRA B rows do not align with slice sizes";

// A pair whose B has `num_rows` rows, numbered from `first`.
struct OwnedPair {
  OwnedPair(double first, int64_t num_rows) : a(counting({2, 3})), b(Dtype::f32, {num_rows, 2}) {
    for (int64_t n = 0; n < num_rows; ++n) b.set(first + double(n), n, 0);
  }
  LoraPair pair() const { return {a.view(), b.view(), 0.5F}; }
  Tensor a, b;
};

std::vector<double> first_column(const LoraPair& pair) {
  std::vector<double> out;
  for (int64_t n = 0; n < pair.b.size(0); ++n) out.push_back(pair.b.get(n, 0));
  return out;
}

// [1.25] [3.6] One tensor over all slices: A repeated, B split, no copies.
TEST(ExpandPacked, OneTensorIsSplitByOutputSizes) {
  const OwnedPair fused(0, 6);
  const LoraPairs got = expand_packed({fused.pair()}, {3, 1, 2});
  ASSERT_EQ(got.size(), 3);
  EXPECT_THAT(first_column(*got[0]), ElementsAre(0, 1, 2));
  EXPECT_THAT(first_column(*got[1]), ElementsAre(3));
  EXPECT_THAT(first_column(*got[2]), ElementsAre(4, 5));
  for (const auto& pair : got) {
    EXPECT_EQ(pair->a.data, fused.a.view().data);
    EXPECT_EQ(pair->scaling, 0.5F);
  }
}

// [1.25] [3.24] m = 2, n = 4: q | k | v in one tensor and z in another.
TEST(ExpandPacked, TwoTensorsOverFourSlices) {
  const OwnedPair qkv(0, 4), z(10, 3);
  const LoraPairs got = expand_packed({qkv.pair(), z.pair()}, {2, 1, 1, 3});
  ASSERT_EQ(got.size(), 4);
  EXPECT_THAT(first_column(*got[0]), ElementsAre(0, 1));
  EXPECT_THAT(first_column(*got[2]), ElementsAre(3));
  EXPECT_THAT(first_column(*got[3]), ElementsAre(10, 11, 12));
}

// [1.24] [1.25] [3.24] None only where each entry has its own slice.
TEST(ExpandPacked, NoneNeedsAFullList) {
  const OwnedPair q(0, 2), v(10, 1);
  const LoraPairs got = expand_packed({q.pair(), std::nullopt, v.pair()}, {2, 1, 1});
  EXPECT_TRUE(got[0].has_value());
  EXPECT_FALSE(got[1].has_value());
  EXPECT_THAT(first_column(*got[2]), ElementsAre(10));
  const LoraPairs nothing = expand_packed({std::nullopt, std::nullopt}, {2, 1});
  EXPECT_EQ(nothing.size(), 2);
  const std::string error = error_of([&] { expand_packed({q.pair(), std::nullopt}, {2, 1, 1}); });
  EXPECT_THAT(error, HasSubstr("lora_pairs[1]: is None in a list of 2 for 3 slices"));
}

// [1.25]
TEST(ExpandPacked, RowsMustAlign) {
  const OwnedPair two(0, 2), three(0, 3), four(0, 4);
  const auto error = [](const LoraPairs& pairs, const std::vector<int64_t>& sizes) {
    return error_of([&] { expand_packed(pairs, sizes); });
  };
  EXPECT_THAT(error({three.pair()}, {2, 2}), HasSubstr(kMisaligned)) << "ends inside a slice";
  EXPECT_THAT(error({two.pair()}, {2, 2}), HasSubstr(kMisaligned)) << "covers one of two";
  EXPECT_THAT(error({two.pair(), two.pair(), two.pair()}, {2, 2}), HasSubstr(kMisaligned));
  EXPECT_THAT(error({four.pair(), two.pair()}, {2, 2}), HasSubstr(kMisaligned));
  EXPECT_THAT(error({}, {2, 2}), HasSubstr(kMisaligned));
  // The first takes both slices, so None has none of its own.
  EXPECT_THAT(error({four.pair(), std::nullopt}, {2, 2}), HasSubstr("None"));
}

// [3.1] [3.3] Rows in the order of the ranges; beyond the end zeros. A bias is cut like B.
TEST(TakeRows, JoinsRanges) {
  const Tensor matrix = counting({4, 2}), bias = counting({4});
  EXPECT_THAT(values(take_rows(matrix.view(), {{2, 1}, {0, 2}})), ElementsAre(4, 5, 0, 1, 2, 3));
  EXPECT_THAT(values(take_rows(bias.view(), {{1, 1}, {3, 2}})), ElementsAre(1, 3, 0));
}

// [3.4] [1.7] [1.8] P = 2, R = 4, rank 3: tp_rank 1 holds row 2 and a row of zeros; B keeps all of
// the rank, its tail is zero.
TEST(SlicePairs, FullyShardedParts) {
  const LayerShards layer =
      column_shards({.tp_size = 2, .fully_sharded = true, .max_lora_rank = 4}, 2, 2);
  const Tensor a = tensor(Dtype::f32, {3, 2}, {1, 2, 3, 4, 5, 6});
  const Tensor b = tensor(Dtype::f32, {2, 3}, {1, 2, 3, 4, 5, 6});
  const LocalPair got = slice_pairs(layer, 1, {LoraPair{a.view(), b.view(), 2}}, Dtype::bf16)[0];
  EXPECT_EQ(got.shrink_rank, 1);
  EXPECT_EQ(got.expand_rank, 3);
  EXPECT_EQ(got.scaling, 2);
  EXPECT_EQ(got.a.dtype(), Dtype::bf16);
  EXPECT_THAT(values(got.a), ElementsAre(5, 6, 0, 0));
  EXPECT_THAT(values(got.b), ElementsAre(4, 5, 6, 0));
}

// A slot is overwritten whole: nothing of a larger adapter stays behind a smaller one.
TEST(LocalBuffers, SlotsAreOverwrittenAndCleared) {
  const LayerShards layer = column_shards({.tp_size = 1, .max_lora_rank = 2}, 1, 1);
  const Tensor a2 = tensor(Dtype::f32, {2, 1}, {1, 2}), b2 = tensor(Dtype::f32, {1, 2}, {3, 4});
  const Tensor a1 = tensor(Dtype::f32, {1, 1}, {5}), b1 = tensor(Dtype::f32, {1, 1}, {6});
  LocalBuffers buffers(layer, 0, 2, Dtype::f32);
  const auto write = [&](int32_t slot, const Tensor& a, const Tensor& b) {
    buffers.write_slot(slot, slice_pairs(layer, 0, {LoraPair{a.view(), b.view(), 2}}, Dtype::f32));
  };
  write(1, a2, b2);
  write(0, a2, b2);
  write(1, a1, b1);
  EXPECT_THAT(values(buffers.slices[0].a), ElementsAre(1, 2, 5, 0));
  EXPECT_THAT(values(buffers.slices[0].b), ElementsAre(3, 4, 6, 0));
  EXPECT_THAT(buffers.slices[0].shrink_ranks, ElementsAre(2, 1));
  buffers.clear_slot(0);
  EXPECT_THAT(buffers.slices[0].shrink_ranks, ElementsAre(0, 1));
  EXPECT_THAT(buffers.slices[0].expand_ranks, ElementsAre(0, 1));
}

TEST(SlicePairs, ErrorsNameTheSlice) {
  const LayerShards layer = merged_column_shards({.tp_size = 2, .max_lora_rank = 2}, 3, {4, 2});
  const Tensor a = counting({2, 3}), b = counting({2, 2}), wide = counting({3, 3});
  const auto error = [&](const LoraPair& pair) {
    return error_of([&] { slice_pairs(layer, 0, {std::nullopt, pair}, Dtype::f32); });
  };
  EXPECT_EQ(error({a.view(), b.view(), 1}), "");
  EXPECT_EQ(error({wide.view(), b.view(), 1}), "lora_pairs[1].a: rank 3 is outside [1, 2]");
  EXPECT_EQ(error({b.view(), b.view(), 1}), "lora_pairs[1].a: is not [2, 3]");
  EXPECT_EQ(error({a.view(), a.view(), 1}), "lora_pairs[1].b: is not [2, 2]");
  EXPECT_EQ(error({a.view(), b.view(), NAN}), "lora_pairs[1].scaling: is not finite");
  EXPECT_THAT(error_of([&] { slice_pairs(layer, 0, {std::nullopt}, Dtype::f32); }),
              HasSubstr("1 pairs for 2 slices"));
}

}  // namespace
}  // namespace loratory::reference
