// What a kernel needs of shared memory: known before any launch.
#include "gpu/plan/kernel_shape.hpp"

#include <gtest/gtest.h>

#include <utility>

#include "gpu/api/layer_views.hpp"
#include "gpu/plan/lora_variant.hpp"
#include "gpu/plan/variant_table.hpp"

namespace loratory::gpu {
namespace {

// An SM of sm_90 has 228 KB for all its CTAs, each of which takes 1 KB more than it asks for.
constexpr int kSmBytes = 228 << 10, kOfEach = 1 << 10;

template <int kStages, int kOutBytes>
int bytes_of_wgmma_expand(int num_panels) {
  constexpr LoraVariant kVariant{.rank_tiles = 4, .token_tiles = 8, .stages = kStages};
  return KernelShape<kVariant, LoraOp::expand, kOutBytes>::shared_bytes(64 * num_panels);
}

// Whatever the rules choose fits, of y of any dtype: h of as many panels as they counted.
TEST(KernelShape, HFitsBesideThePipelinesThatTheRulesChoose) {
  for (const int64_t max_rank : {33, 64, 65, 192, 448, 449, 512}) {
    for (const int64_t num_slices : {1, 2, 3, 4, 7, 8}) {
      const LaunchShape s{
          .op = LoraOp::expand, .num_tokens = 8192, .max_rank = max_rank, .num_slices = num_slices};
      const bool has_three_stages = choose_expand_variant(s, 8).stages == 3;
      const int panels = int((max_rank + 63) / 64), all = int(num_slices) * panels;
      for (const int at_once : {all <= 8 ? all : panels, panels}) {
        const int bytes = has_three_stages ? bytes_of_wgmma_expand<3, 4>(at_once)
                                           : bytes_of_wgmma_expand<2, 4>(at_once);
        EXPECT_LE(bytes + kOfEach, kSmBytes) << num_slices << " slices of rank " << max_rank;
      }
    }
  }
}

template <size_t kIndex>
void expect_h_fits_beside_narrow_expand() {
  constexpr LoraVariant kVariant = kExpandVariants[kIndex];
  if constexpr (!kVariant.is_wide()) {
    using S = KernelShape<kVariant, LoraOp::expand, 4>;
    EXPECT_LE(S::shared_bytes(int(kMostRanksOfEight)) + kOfEach, kSmBytes) << kVariant;
  }
}
// Of eight tokens, h of three slices of rank 256, beside y of any dtype.
TEST(KernelShape, HOfManySlicesFitsBesideNarrowExpands) {
  [&]<size_t... i>(std::index_sequence<i...>) { (expect_h_fits_beside_narrow_expand<i>(), ...); }
  (std::make_index_sequence<std::size(kExpandVariants)>{});
}

// Two CTAs per SM: three stages with two panels of h, two stages with three.
TEST(KernelShape, TwoWgmmaExpandsShareAnSm) {
  EXPECT_LE(2 * (bytes_of_wgmma_expand<3, 2>(2) + kOfEach), kSmBytes);
  EXPECT_GT(2 * (bytes_of_wgmma_expand<3, 2>(3) + kOfEach), kSmBytes);
  EXPECT_LE(2 * (bytes_of_wgmma_expand<2, 2>(3) + kOfEach), kSmBytes);
  EXPECT_GT(2 * (bytes_of_wgmma_expand<2, 2>(4) + kOfEach), kSmBytes);
}

template <int kRankTiles, int kCluster, int kStages>
int shrinks_an_sm() {
  constexpr LoraVariant kVariant{
      .rank_tiles = kRankTiles, .token_tiles = 8, .cluster = kCluster, .stages = kStages};
  using S = KernelShape<kVariant, LoraOp::shrink, 2>;
  const int fit = kSmBytes / (S::shared_bytes(0) + kOfEach);
  EXPECT_EQ(fit, S::kCtasPerSm);
  return fit;
}
// As many as the registers are bounded for.
TEST(KernelShape, ShrinksOfManyTokensShareAnSm) {
  EXPECT_EQ((shrinks_an_sm<4, 8, 3>()), 3);
  EXPECT_EQ((shrinks_an_sm<4, 8, 4>()), 2);
  EXPECT_EQ((shrinks_an_sm<4, 4, 3>()), 3);
  EXPECT_EQ((shrinks_an_sm<4, 4, 4>()), 2);
  EXPECT_EQ((shrinks_an_sm<8, 8, 3>()), 2);
}

}  // namespace
}  // namespace loratory::gpu
