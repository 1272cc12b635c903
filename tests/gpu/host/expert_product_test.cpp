// Base experts without a GPU: where columns lie in a tile, which sizes are chosen, what is refused.
#include "gpu/moe/expert_product.hpp"

#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "gpu/moe/expert_tile.hpp"
#include "gpu/moe/router.hpp"
#include "tests/gpu/host/layer_args.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using testing::HasSubstr;

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

/// A panel in shared memory, as the kernel fills it: 64 numbers of K of each column, then of each
/// row.
template <typename Tile>
std::vector<float> filled_panel(const std::vector<std::array<float, 64>>& w,
                                const std::vector<std::array<float, 64>>& x) {
  std::vector<float> panel(Tile::kPanelBytes / 2, std::nanf(""));
  const auto fill = [&](int base, int place, const std::array<float, 64>& numbers) {
    for (int c = 0; c < 64; ++c) {
      panel[size_t((base + swizzle_128b(place, c / 8)) / 2 + c % 8)] = numbers[size_t(c)];
    }
  };
  for (int place = 0; place < Tile::kColumns; ++place) {
    fill(0, place, w[size_t(Tile::column_of(place))]);
  }
  for (int place = 0; place < Tile::kRows; ++place) {
    fill(Tile::kColumns * Tile::kRowBytes, place, x[size_t(place)]);
  }
  return panel;
}

/// ldmatrix.x4: matrix m has the rows that lanes 8 m to 8 m + 7 name; a lane gets pair lane % 4 of
/// row lane / 4 of each.
using Matrices = std::array<std::array<float, 2>, 4>;
template <typename Offset>
Matrices load_matrices(const std::vector<float>& panel, int base, int lane, Offset offset_of) {
  Matrices out{};
  for (int m = 0; m < 4; ++m) {
    const auto row = size_t((base + offset_of(8 * m + lane / 4)) / 2 + 2 * (lane % 4));
    out[size_t(m)] = {panel[row], panel[row + 1]};
  }
  return out;
}

/// The left operand of m16n8k16, row by row: of each lane (rows 0-7, 8-15) x (k 0-7, 8-15).
struct Fragment {
  std::array<std::array<float, 16>, 16> rows{};

  void add(int lane, int m, const std::array<float, 2>& two) {
    for (int i = 0; i < 2; ++i) {
      rows[size_t(lane / 4 + 8 * (m % 2))][size_t(2 * (lane % 4) + 8 * (m / 2) + i)] =
          two[size_t(i)];
    }
  }
};

/// One panel through the fragments of a warp, as ExpertCta::multiply() and store() walk them.
template <typename Tile>
void expect_products() {
  std::vector<std::array<float, 64>> w(Tile::kColumns), x(Tile::kRows);
  int64_t seed = 1;
  for (auto* matrix : {&w, &x}) {
    for (auto& row : *matrix) {
      for (float& v : row) v = float((seed = seed * 1103515 % 7919) % 7 - 3);
    }
  }
  const std::vector<float> panel = filled_panel<Tile>(w, x);
  const int x_base = Tile::kColumns * Tile::kRowBytes;
  std::vector<std::vector<float>> y(Tile::kRows, std::vector<float>(Tile::kColumns, 0));
  std::vector<int> stores(size_t(Tile::kRows * Tile::kColumns), 0);
  for (int warp = 0; warp < Tile::kWarps; ++warp) {
    for (int t = 0; t < Tile::kTiles; ++t) {
      for (int group = 0; group < Tile::kRows / 8; ++group) {
        for (int v = 0; v < 8; v += 2) {
          Fragment a;
          std::array<std::array<float, 16>, 8> b{};  // [row of x][k]
          for (int lane = 0; lane < 32; ++lane) {
            const Matrices of_w = load_matrices(panel, 0, lane, [&](int i) {
              return swizzle_128b(Tile::weight_place(warp, t, i), Tile::weight_vec(v, i));
            });
            for (int m = 0; m < 4; ++m) a.add(lane, m, of_w[size_t(m)]);
            const int pair = Tile::kRows == 8 ? 0 : group / 2 * 2;
            const Matrices of_x = load_matrices(panel, x_base, lane, [&](int i) {
              return swizzle_128b(Tile::x_place(pair, i), Tile::x_vec(v, i));
            });
            for (int half = 0; half < 2; ++half) {  // k 0-7, 8-15
              const auto& two = of_x[size_t(2 * (group - pair) + half)];
              for (int i = 0; i < 2; ++i) {
                b[size_t(lane / 4)][size_t(2 * (lane % 4) + 8 * half + i)] = two[size_t(i)];
              }
            }
          }
          for (int lane = 0; lane < 32; ++lane) {
            for (int i = 0; i < 4;
                 ++i) {  // sum i: row lane / 4 + 8 (i / 2), column 2 (lane % 4) + i % 2
              const int column = Tile::first_column(warp, lane) + 2 * t + i / 2;
              const int row = Tile::row_of_sum(group, lane, i % 2);
              float sum = 0;
              for (size_t c = 0; c < 16; ++c) {
                sum += a.rows[size_t(lane / 4 + 8 * (i / 2))][c] *
                       b[size_t(2 * (lane % 4) + i % 2)][c];
              }
              y[size_t(row)][size_t(column)] += sum;
              ++stores[size_t(row * Tile::kColumns + column)];
            }
          }
        }
      }
    }
  }
  for (int row = 0; row < Tile::kRows; ++row) {
    for (int n = 0; n < Tile::kColumns; ++n) {
      float want = 0;
      for (size_t c = 0; c < 64; ++c) want += x[size_t(row)][c] * w[size_t(n)][c];
      ASSERT_EQ(y[size_t(row)][size_t(n)], want) << "row " << row << " column " << n;
      ASSERT_EQ(stores[size_t(row * Tile::kColumns + n)], 4);  // once for each 16 of K
    }
  }
}
TEST(ExpertTile, MultipliesThroughItsFragments) {
  expect_products<NarrowExpertTile>();
  expect_products<MiddleExpertTile>();
  expect_products<WideExpertTile>();
}

TEST(ExpertProduct, ChoosesSegmentsByRowsAndExperts) {
  EXPECT_EQ(expert_product_segments(Dtype::bf16, 8, 128), 8);
  EXPECT_EQ(expert_product_segments(Dtype::bf16, 1024, 128), 8);
  EXPECT_EQ(expert_product_segments(Dtype::bf16, 256, 8), 32);
  EXPECT_EQ(expert_product_segments(Dtype::f16, 32768, 128), 64);
  EXPECT_EQ(expert_product_segments(Dtype::f32, 32768, 128), 8);  // the plain kernel
}

ExpertProductArgs args() {
  return {.x = device_view(Dtype::bf16, at(0x10000), {10, 64}),
          .weights = device_view(Dtype::bf16, at(0x20000), {4, 32, 64}),
          .y = device_view(Dtype::bf16, at(0x30000), {20, 32}),
          .rows_per_x = 2};
}
std::string product_error(const ExpertProductArgs& a) {
  const GroupViews groups{{segments(8), segments(32), segments(64)}};
  return error_of([&] { expert_product(a, groups, nullptr); });
}

TEST(ExpertProduct, NamesWhatDoesNotFit) {
  ExpertProductArgs a = args();
  a.y.shape[0] = 19;
  EXPECT_THAT(product_error(a), HasSubstr("expert_product: y: has shape [19, 32], not [20, 32]"));
  a = args(), a.x.dtype = Dtype::f16;
  EXPECT_THAT(product_error(a), HasSubstr("expert_product: x: has dtype f16, not bf16"));
  a = args(), a.weights = device_view(Dtype::bf16, at(0x20000), {4, 32, 60});
  a.x = device_view(Dtype::bf16, at(0x10000), {10, 60});
  EXPECT_THAT(product_error(a), HasSubstr("has 32 rows of 60, needs multiples of 8"));
  a = args(), a.weights.strides[0] += 4;
  EXPECT_THAT(product_error(a), HasSubstr("must begin at multiples of 16 bytes"));
  a = args(), a.x.data = at(0x10008);
  EXPECT_THAT(product_error(a), HasSubstr("must begin at multiples of 16 bytes"));
  a = args(), a.weights.strides[2] = 2;
  EXPECT_THAT(product_error(a), HasSubstr("do not lie side by side"));
  a = args(), a.rows_per_x = 0;
  EXPECT_THAT(product_error(a), HasSubstr("rows_per_x: must be at least 1"));
  a = args(), a.weights.num_axes = 2;
  EXPECT_THAT(product_error(a), HasSubstr("weights: has 2 axes"));
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
