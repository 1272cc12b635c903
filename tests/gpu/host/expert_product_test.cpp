// Base experts without a GPU: where columns lie in a tile, which sizes are chosen, what is refused.
#include "gpu/moe/expert_product.hpp"

#include <gmock/gmock.h>

#include <set>

#include "gpu/moe/expert_tile.hpp"
#include "gpu/moe/router.hpp"
#include "tests/gpu/host/error_of.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using testing::HasSubstr;

void* at(uintptr_t address) { return reinterpret_cast<void*>(address); }

/// The fragments of mma.sync, walked as the kernel walks them: thread (warp, lane) has rows g and
/// g + 8 of each tile, and must find its own columns side by side.
template <typename Tile>
void expect_columns() {
  std::set<int> columns;
  for (int warp = 0; warp < Tile::kWarps; ++warp) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int t = 0; t < Tile::kTiles; ++t) {
        for (int h = 0; h < 2; ++h) {
          const int place = warp * Tile::kWarpColumns + 16 * t + 8 * h + lane / 4;
          const int column = Tile::column_of(place);
          EXPECT_EQ(column, Tile::first_column(warp, lane) + 2 * t + h);
          columns.insert(column);
        }
      }
    }
  }
  EXPECT_EQ(int(columns.size()), Tile::kColumns);
  EXPECT_EQ(*columns.rbegin(), Tile::kColumns - 1);
}
TEST(ExpertTile, GivesAThreadNeighbouringColumns) {
  expect_columns<NarrowExpertTile>();
  expect_columns<MiddleExpertTile>();
  expect_columns<WideExpertTile>();
}

/// Every vector of a stage is written once: W by all threads, then x.
template <typename Tile>
void expect_full_stage() {
  std::set<int> offsets;
  for (int panel = 0; panel < Tile::kPanels; ++panel) {
    for (int thread = 0; thread < Tile::kNumThreads; ++thread) {
      for (int i = 0; i < (Tile::kColumns + Tile::kRows) / Tile::kRowsAtOnce; ++i) {
        const int place = i * Tile::kRowsAtOnce + thread / 8;
        offsets.insert(panel * Tile::kPanelBytes + swizzle_128b(place, thread % 8));
      }
    }
  }
  EXPECT_EQ(int(offsets.size()) * 16, Tile::kStageBytes);
  EXPECT_EQ(*offsets.rbegin() + 16, Tile::kStageBytes);
}
TEST(ExpertTile, FillsAStage) {
  expect_full_stage<NarrowExpertTile>();
  expect_full_stage<MiddleExpertTile>();
  expect_full_stage<WideExpertTile>();
}

TEST(ExpertProduct, ChoosesSegmentsByRowsAndExperts) {
  EXPECT_EQ(expert_product_segments(Dtype::bf16, 8, 128), 8);
  EXPECT_EQ(expert_product_segments(Dtype::bf16, 1024, 128), 8);
  EXPECT_EQ(expert_product_segments(Dtype::bf16, 256, 8), 32);
  EXPECT_EQ(expert_product_segments(Dtype::f16, 32768, 128), 64);
  EXPECT_EQ(expert_product_segments(Dtype::f32, 32768, 128), 8);  // the plain kernel
}

SegmentView segments(int32_t size) {
  return {.num_segments = static_cast<const int32_t*>(at(0x6000)),
          .segments = static_cast<const Segment*>(at(0x7000)),
          .token_indices = static_cast<const int32_t*>(at(0x8000)),
          .segment_size = size,
          .max_segments = 100};
}

ExpertProductArgs args() {
  return {.x = device_view(Dtype::bf16, at(0x10000), {10, 64}),
          .weights = device_view(Dtype::bf16, at(0x20000), {4, 32, 64}),
          .y = device_view(Dtype::bf16, at(0x30000), {20, 32}),
          .rows_per_x = 2};
}
using gpu::error_of;
std::string error_of(const ExpertProductArgs& a) {
  const GroupViews groups{{segments(8), segments(32), segments(64)}};
  return error_of([&] { expert_product(a, groups, nullptr); });
}

TEST(ExpertProduct, NamesWhatDoesNotFit) {
  ExpertProductArgs a = args();
  a.y.shape[0] = 19;
  EXPECT_THAT(error_of(a), HasSubstr("expert_product: y: has shape [19, 32], not [20, 32]"));
  a = args(), a.x.dtype = Dtype::f16;
  EXPECT_THAT(error_of(a), HasSubstr("expert_product: x: has dtype f16, not bf16"));
  a = args(), a.weights = device_view(Dtype::bf16, at(0x20000), {4, 32, 60});
  a.x = device_view(Dtype::bf16, at(0x10000), {10, 60});
  EXPECT_THAT(error_of(a), HasSubstr("has 32 rows of 60, needs multiples of 8"));
  a = args(), a.weights.strides[0] += 4;
  EXPECT_THAT(error_of(a), HasSubstr("must begin at multiples of 16 bytes"));
  a = args(), a.x.data = at(0x10008);
  EXPECT_THAT(error_of(a), HasSubstr("must begin at multiples of 16 bytes"));
  a = args(), a.weights.strides[2] = 2;
  EXPECT_THAT(error_of(a), HasSubstr("do not lie side by side"));
  a = args(), a.rows_per_x = 0;
  EXPECT_THAT(error_of(a), HasSubstr("rows_per_x: must be at least 1"));
  a = args(), a.weights.num_axes = 2;
  EXPECT_THAT(error_of(a), HasSubstr("weights: has 2 axes"));
}

TEST(Router, NamesWhatDoesNotFit) {
  RouterArgs a{.logits = device_view(Dtype::f32, at(0x1000), {3, 8}),
               .k = 2,
               .experts = static_cast<int32_t*>(at(0x2000)),
               .weights = static_cast<float*>(at(0x3000))};
  const auto with = [&](const auto& change) {
    RouterArgs changed = a;
    change(changed);
    return error_of([&] { route(changed, nullptr); });
  };
  EXPECT_THAT(with([](RouterArgs& r) { r.k = 9; }), HasSubstr("route: k: is 9, needs 1 to 8"));
  EXPECT_THAT(with([](RouterArgs& r) { r.k = 0; }), HasSubstr("route: k: is 0, needs 1 to 8"));
  EXPECT_THAT(with([](RouterArgs& r) { r.logits.dtype = Dtype::bf16; }),
              HasSubstr("route: logits: has dtype bf16, not f32"));
  EXPECT_THAT(with([](RouterArgs& r) { r.experts = nullptr; }), HasSubstr("experts: is null"));
  EXPECT_THAT(with([](RouterArgs& r) { r.weights = nullptr; }), HasSubstr("weights: is null"));
  EXPECT_THAT(with([](RouterArgs& r) {
                r.logits = device_view(Dtype::f32, at(0x1000), {3, kMostExperts + 1});
              }),
              HasSubstr("has 2049 experts, at most 2048 fit"));
}

TEST(CombineExperts, NamesWhatDoesNotFit) {
  CombineArgs a{.z = device_view(Dtype::bf16, at(0x1000), {6, 8}),
                .y = device_view(Dtype::bf16, at(0x2000), {3, 8}),
                .experts = static_cast<const int32_t*>(at(0x3000))};
  CombineArgs bad = a;
  bad.z.shape[0] = 7;
  EXPECT_THAT(error_of([&] { combine_experts(bad, nullptr); }),
              HasSubstr("combine_experts: z: has 7 rows for 3 tokens"));
  bad = a, bad.y.shape[1] = 7;
  EXPECT_THAT(error_of([&] { combine_experts(bad, nullptr); }), HasSubstr("not [3, 8]"));
  bad = a, bad.experts = nullptr;
  EXPECT_THAT(error_of([&] { combine_experts(bad, nullptr); }), HasSubstr("experts: is null"));
}

}  // namespace
}  // namespace loratory::gpu
