// The statistical lane of the device tests, without a device: the reference passes for a kernel,
// and what loses 64 columns of K, or rounds delta once too often, does not.
#include "tests/gpu/support/layer_statistics.hpp"

#include <gtest/gtest.h>

namespace loratory::gpu {
namespace {

using reference::IntermediateMode;
using reference::LayerBatch;
using reference::LayerCase;
using reference::LayerData;
using reference::SumMode;
using reference::Tensor;

LayerCase large_case(IntermediateMode h) {
  return {.seed = 5,
          .num_tokens = 24,
          .num_in = 14336,
          .num_out = {64, 128},
          .max_loras = 3,
          .max_rank = 32,
          .min_rank = 16,
          .mode = {.h = h},
          .offset_start = 8};
}

const std::vector<int64_t> kRows{0, 1, 2, 3, 5, 7, 11, 13, 17, 19, 22, 23};

TEST(LayerStatistics, TheReferencePassesInEveryModeOfTheKernels) {
  for (const IntermediateMode h :
       {IntermediateMode::fp32, IntermediateMode::split2, IntermediateMode::store_as_x}) {
    const LayerData data(large_case(h));
    const LayerStatistics statistics(data, data.batch, kRows, 0x1p-22);
    const check::StatisticalVerdict verdict = statistics.judge(data.run(data.batch));
    EXPECT_TRUE(verdict.ok) << verdict.in_words();
    EXPECT_GT(verdict.num_elements, 500);
    EXPECT_GT(verdict.num_informative, 20);
  }
}

// Both are far within the worst-case bound: 60 % of delta at this K.
TEST(LayerStatistics, FaultsWithinTheBoundAreNoticed) {
  const LayerData data(large_case(IntermediateMode::split2));
  const LayerStatistics statistics(data, data.batch, kRows, 0x1p-22);
  LayerData short_of_64 = data;
  for (reference::LayerSlice& slice : short_of_64.slices) {
    for (int64_t slot = 0; slot < data.shape.max_loras; ++slot) {
      for (int64_t j = 0; j < data.shape.max_rank; ++j) {
        for (int64_t k = data.shape.num_in - 64; k < data.shape.num_in; ++k) {
          slice.a.set(0, slot, j, k);
        }
      }
    }
  }
  EXPECT_FALSE(statistics.judge(short_of_64.run(data.batch)).ok);
  LayerData twice = data;
  twice.shape.mode.sum = SumMode::two_round;
  EXPECT_FALSE(statistics.judge(twice.run(data.batch)).ok);
}

TEST(LayerStatistics, KernelsKeepHInTwoPartsWhereTheModeSaysFp32) {
  const LayerData data(large_case(IntermediateMode::fp32));
  LayerBatch batch = data.batch;
  const reference::Arithmetic a = kernel_arithmetic(data.args(batch), 0x1p-22);
  EXPECT_EQ(a.mode.h, IntermediateMode::split2);
  EXPECT_EQ(a.unit, 0x1p-22);
}

}  // namespace
}  // namespace loratory::gpu
