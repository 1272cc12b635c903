// What tp_ranks tell each other: order and rounding of sums, cuts and joins along an axis.
#include "reference/parallel/collectives.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/reference/parallel/test_tensors.hpp"

namespace loratory::reference {
namespace {

using testing::ElementsAre;

Tensor one(Dtype dtype, double value) { return tensor(dtype, {1}, {value}); }

TEST(Collectives, AllReduceSumsInOrderOfTheTpRanks) {
  // (1e8 + -1e8) + 1 = 1, but 1e8 + (-1e8 + 1) = 0 in fp32.
  const auto got = all_reduce({one(Dtype::f32, 1e8), one(Dtype::f32, -1e8), one(Dtype::f32, 1)});
  ASSERT_EQ(got.size(), 3);
  for (const Tensor& t : got) EXPECT_THAT(values(t), ElementsAre(1));
  const auto other = all_reduce({one(Dtype::f32, 1), one(Dtype::f32, -1e8), one(Dtype::f32, 1e8)});
  EXPECT_THAT(values(other[1]), ElementsAre(0));
}

TEST(Collectives, AllReduceRoundsOnceOrAtEverySum) {
  // bf16 has 8 bits: 256 + 1 is a tie that rounds down; 256 + 2 is exact.
  const std::vector<Tensor> parts{one(Dtype::bf16, 256), one(Dtype::bf16, 1), one(Dtype::bf16, 1)};
  EXPECT_THAT(values(all_reduce(parts)[0]), ElementsAre(258));
  EXPECT_THAT(values(all_reduce(parts, ReduceRounding::each_sum)[2]), ElementsAre(256));
}

TEST(Collectives, AllReduceKeepsNegativeZeros) {
  for (const size_t num_tp_ranks : {1, 4}) {
    const std::vector<Tensor> parts(num_tp_ranks, one(Dtype::f16, -0.0));
    EXPECT_TRUE(std::signbit(all_reduce(parts)[0].get(0))) << num_tp_ranks;
  }
}

TEST(Collectives, AllGatherJoinsAlongAnyAxis) {
  const Tensor a = tensor(Dtype::bf16, {2, 2}, {1, 2, 3, 4});
  const Tensor b = tensor(Dtype::bf16, {2, 2}, {5, 6, 7, 8});
  const auto columns = all_gather({a, b}, 1);
  EXPECT_THAT(columns[0].shape(), ElementsAre(2, 4));
  for (const Tensor& t : columns) EXPECT_THAT(values(t), ElementsAre(1, 2, 5, 6, 3, 4, 7, 8));
  EXPECT_THAT(values(all_gather({a, b}, 0)[1]), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  const Tensor wide = tensor(Dtype::bf16, {2, 1}, {9, 10});
  EXPECT_THAT(values(all_gather({wide, a}, 1)[0]), ElementsAre(9, 1, 2, 10, 3, 4));
}

TEST(Collectives, SplitIsTheReverseOfAllGather) {
  Tensor whole(Dtype::f32, {2, 6, 3});
  for (size_t i = 0; i < 36; ++i) store(Dtype::f32, whole.bytes().data() + 4 * i, double(i));
  for (const auto& [axis, num_tp_ranks] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 2}, {1, 3}, {1, 6}, {2, 3}, {2, 1}}) {
    const auto parts = split(whole, num_tp_ranks, axis);
    ASSERT_EQ(int64_t(parts.size()), num_tp_ranks);
    EXPECT_EQ(all_gather(parts, axis)[0].bytes(), whole.bytes()) << axis;
  }
  EXPECT_THAT(values(split(tensor(Dtype::f32, {2, 4}, {0, 1, 2, 3, 4, 5, 6, 7}), 2, 1)[1]),
              ElementsAre(2, 3, 6, 7));
}

// [3.11] The sum is that of all_reduce, bit for bit; a tp_rank keeps its part.
TEST(Collectives, ReduceScatterIsAPartOfAllReduce) {
  const std::vector<Tensor> parts{tensor(Dtype::bf16, {4, 1}, {256, 1, 2, 3}),
                                  tensor(Dtype::bf16, {4, 1}, {1, 1, 2, 3})};
  const auto got = reduce_scatter(parts, 0);
  EXPECT_THAT(values(got[0]), ElementsAre(256, 2));
  EXPECT_THAT(values(got[1]), ElementsAre(4, 6));
}

TEST(Collectives, EmptyTensorsAreFine) {
  const std::vector<Tensor> parts(2, Tensor(Dtype::f32, {3, 0, 4}));
  EXPECT_THAT(all_reduce(parts)[0].shape(), ElementsAre(3, 0, 4));
  EXPECT_THAT(all_gather(parts, 2)[0].shape(), ElementsAre(3, 0, 8));
  EXPECT_THAT(split(parts[0], 2, 2)[0].shape(), ElementsAre(3, 0, 2));
}

TEST(Collectives, ErrorsNameTheNumbers) {
  EXPECT_THROW(all_reduce({}), InputError);
  EXPECT_THROW(all_reduce({one(Dtype::f32, 1), one(Dtype::bf16, 1)}), InputError);
  EXPECT_THROW(all_reduce({Tensor(Dtype::f32, {2}), Tensor(Dtype::f32, {3})}), InputError);
  EXPECT_THROW(all_gather({one(Dtype::f32, 1)}, 1), InputError);
  try {
    split(Tensor(Dtype::f32, {6}), 4, 0);
    FAIL();
  } catch (const InputError& e) {
    EXPECT_STREQ(e.what(), "split: axis of size 6 is not divisible by tp_size 4");
  }
}

}  // namespace
}  // namespace loratory::reference
