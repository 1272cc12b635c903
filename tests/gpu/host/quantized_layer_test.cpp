// Layers of 8-bit weights before a launch: what is refused, which path and variant is chosen, and
// that what the rules choose has a kernel and fits.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include "gpu/api/lora_layer.hpp"
#include "gpu/plan/kernel_shape.hpp"
#include "gpu/plan/quantized_plan.hpp"
#include "gpu/plan/quantized_variants.hpp"
#include "gpu/plan/swizzle.hpp"
#include "tests/gpu/host/layer_args.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using testing::HasSubstr;

DeviceView factors(std::initializer_list<int64_t> shape) {
  return device_view(Dtype::f32, at(0x6000), shape);
}

LoraSliceDesc quantized_slice(Dtype a = Dtype::f8_e4m3fn, Dtype b = Dtype::f8_e5m2) {
  return {.a = device_view(a, at(0x1000), {4, 32, 64}),
          .b = device_view(b, at(0x2000), {4, 48, 32}),
          .ranks = static_cast<const int32_t*>(at(0x3000)),
          .scalings = static_cast<const float*>(at(0x4000)),
          .a_scale = factors({4, 32}),
          .b_scale = factors({4})};
}

LoraLayerDesc quantized_desc() {
  return {.slices = {quantized_slice(), quantized_slice(Dtype::f8_e5m2, Dtype::f8_e4m3fn)},
          .workspace = at(0x50000),
          .workspace_bytes = size_t{1} << 20};
}

// [1.42] [1.44]: each slice its formats; factors of the shapes that there are.
TEST(QuantizedLayer, NamesWhatDoesNotFit) {
  EXPECT_EQ(error_of(quantized_desc()), "");
  LoraLayerDesc d = quantized_desc();
  d.slices[1].b.dtype = Dtype::bf16;
  EXPECT_THAT(error_of(d),
              HasSubstr("slices[1].b: is bf16, the layer's first weight is f8_e4m3fn"));
  d = quantized_desc();
  d.slices[0].a_scale = {};
  EXPECT_THAT(error_of(d), HasSubstr("slices[0].a_scale: is null, 8-bit numbers have factors"));
  d = quantized_desc();
  d.slices[1].b_scale = factors({4, 47});
  EXPECT_THAT(error_of(d), HasSubstr("slices[1].b_scale: has shape [4, 47], needs [4] or [4, 48]"));
  d = quantized_desc();
  d.slices[1].b_scale.dtype = Dtype::f16;
  EXPECT_THAT(error_of(d), HasSubstr("slices[1].b_scale: is f16, needs f32"));
  d = quantized_desc();
  d.slices[0].a_scale.strides[1] = 2;
  EXPECT_THAT(error_of(d), HasSubstr("slices[0].a_scale: needs an innermost stride of 1"));
  d.slices[0].a_scale.num_axes = 1 << 30;
  EXPECT_THAT(error_of(d), HasSubstr("slices[0].a_scale: has 1073741824 axes, 3 at most fit"));
  d = quantized_desc();
  d.b_block = {16, 0};
  EXPECT_THAT(error_of(d), HasSubstr("b_block: is 16 x 0, needs two positive sizes, or 0 x 0"));
  d = quantized_desc();
  d.mode.scale = reference::ScaleMode::folded_b;
  EXPECT_THAT(error_of(d), HasSubstr("mode.scale: folds into B"));
  d = quantized_desc();
  d.mode.h = reference::IntermediateMode::cast_to_weight;
  EXPECT_THAT(error_of(d), HasSubstr("mode.h: has no meaning for 8-bit weights"));
}

// [1.48]: n groups, then k groups.
TEST(QuantizedLayer, BlocksAreCountedByRowsAndColumns) {
  LoraLayerDesc d = quantized_desc();
  d.a_block = {16, 24}, d.b_block = {10, 32};
  for (LoraSliceDesc& s : d.slices) {
    s.a_scale = factors({4, 2, 3});
    s.b_scale = factors({4, 5, 1});
  }
  EXPECT_EQ(error_of(d), "");
  d.slices[1].a_scale = factors({4, 3, 2});
  EXPECT_THAT(error_of(d), HasSubstr("slices[1].a_scale: has shape [4, 3, 2], needs [4, 2, 3]"));
}

// The weights of experts are 16-bit.
TEST(QuantizedLayer, HasNoExperts) {
  for (const LoraExperts& experts :
       {LoraExperts{.num_experts = 2}, LoraExperts{.rows_per_x = 2},
        LoraExperts{.router_weights = static_cast<const float*>(at(0x40000))}}) {
    LoraLayerDesc d = quantized_desc();
    d.experts = experts;
    EXPECT_THAT(error_of(d), HasSubstr("experts: do not go together with 8-bit weights"));
  }
}

struct QuantizedCall {
  LoraLayerDesc desc;
  DeviceView x = device_view(Dtype::bf16, at(0x10000), {8, 64});
  DeviceView y = device_view(Dtype::bf16, at(0x20000), {8, 96});
  DeviceView x_scale{};
  SegmentView segments{static_cast<const int32_t*>(at(0x30000)),
                       static_cast<const Segment*>(at(0x30010)),
                       static_cast<const int32_t*>(at(0x30100)), 8};

  std::string error() const {
    return error_of(
        [&] { LoraLayer(desc).launch({.x = x, .y = y, .x_scale = x_scale}, segments, nullptr); });
  }
  LoraPath path() const { return LoraLayer(desc).path_for({.x = x, .y = y, .x_scale = x_scale}); }
};

// [1.45]: a scale for each token is [T, 1], also where T is 1.
TEST(QuantizedLayer, ChecksEachLaunch) {
  QuantizedCall call{quantized_desc()};
  call.x_scale = factors({8, 1});
  EXPECT_THAT(call.error(), HasSubstr("x_scale: scales bf16, only 8-bit activations have a scale"));
  call.x.dtype = Dtype::f8_e4m3fn;
  call.x_scale = {};
  EXPECT_THAT(call.error(), HasSubstr("x_scale: is null, 8-bit numbers have factors"));
  call.x_scale = factors({8});
  EXPECT_THAT(call.error(), HasSubstr("x_scale: has shape [8], needs [] or [8, 1]"));
  call.x.dtype = Dtype::i8;
  call.x_scale = factors({8, 1});
  EXPECT_THAT(call.error(), HasSubstr("slices[0].a: is f8_e4m3fn, the activations are i8"));
  call = QuantizedCall{quantized_desc()};
  call.desc.workspace_bytes = 2047;
  EXPECT_THAT(call.error(), HasSubstr("workspace: has 2047 bytes, 8-bit weights need 2048"));
  call.desc.workspace = nullptr;
  EXPECT_THAT(call.error(), HasSubstr("workspace: has 0 bytes, 8-bit weights need 2048"));
  call = QuantizedCall{quantized_desc()};
  call.segments.segment_size = 16;
  EXPECT_THAT(call.error(), HasSubstr("has segments of 16 tokens, the kernel needs 8"));
}

TEST(QuantizedLayer, OneLaunchIsOfWideXAndYOfItsDtype) {
  QuantizedCall call{quantized_desc()};
  const auto error_of_one_launch = [&call] {
    return error_of([&] {
      LoraLayer(call.desc).launch_variant({.cluster = 8, .stages = 2},
                                          {.x = call.x, .y = call.y, .x_scale = call.x_scale},
                                          call.segments, nullptr, LaunchOrder::after_previous);
    });
  };
  call.y.dtype = Dtype::f16;
  EXPECT_THAT(error_of_one_launch(),
              HasSubstr("variant: needs two launches: in one x has 16 bits"));
  call.y.dtype = call.x.dtype;
  call.x.dtype = Dtype::f8_e4m3fn;
  call.x_scale = factors({8, 1});
  EXPECT_THAT(error_of_one_launch(), HasSubstr("variant: needs two launches"));
}

// h in fp32, then rows of a multiple of 16 bytes, then factors, for each row or for each slice.
TEST(QuantizedLayer, WorkspaceHoldsHTwice) {
  EXPECT_EQ(quantized_workspace_bytes(10, 2, 17, 0), size_t{20 * 80 + 20 * (32 + 4) + 8});
  EXPECT_EQ(quantized_workspace_bytes(10, 2, 17, 4), size_t{20 * 80 + 20 * (32 + 20) + 8});
}

// [1.19]: by what never changes in a layer.
TEST(QuantizedLayer, PathFollowsFromTheLayer) {
  EXPECT_EQ((QuantizedCall{quantized_desc()}.path()), LoraPath::tensor_core);
  QuantizedCall call{quantized_desc()};
  call.x.dtype = call.y.dtype = Dtype::f16;
  EXPECT_EQ(call.path(), LoraPath::tensor_core);
  call.y.dtype = Dtype::f32;
  EXPECT_EQ(call.path(), LoraPath::tensor_core);
  call.x.dtype = Dtype::f32;
  EXPECT_EQ(call.path(), LoraPath::generic);
  call = QuantizedCall{quantized_desc()};
  call.desc.slices[0].a.strides[1] = 72;
  EXPECT_EQ(call.path(), LoraPath::generic);
  call = QuantizedCall{quantized_desc()};
  call.y.strides[0] = 97;
  EXPECT_EQ(call.path(), LoraPath::generic);
  call = QuantizedCall{quantized_desc()};
  call.desc.b_block = {16, 32};
  for (LoraSliceDesc& s : call.desc.slices) s.b_scale = factors({4, 3, 1});
  EXPECT_EQ(call.path(), LoraPath::tensor_core) << "one group of ranks";
  call.desc.b_block = {16, 16};
  for (LoraSliceDesc& s : call.desc.slices) s.b_scale = factors({4, 3, 2});
  EXPECT_EQ(call.path(), LoraPath::generic) << "two groups of ranks";
}

// A graph of few tokens has few segments, however many slots there are. Timed on an H200.
TEST(QuantizedVariants, FewTokensHaveFewSegments) {
  LaunchShape shape{
      .op = LoraOp::shrink, .num_tokens = 1, .num_in = 4096, .max_rank = 64, .num_slots = 32};
  const auto chosen = [&shape] { return choose_quantized_variant(shape); };
  EXPECT_EQ(chosen(), (LoraVariant{.rank_tiles = 2, .cluster = 8}));
  shape.num_in = 12288;
  EXPECT_EQ(chosen(), (LoraVariant{.rank_tiles = 2, .cluster = 8, .stages = 2}));
  shape.num_in = 4096, shape.max_rank = 128, shape.num_rank_blocks = 2;
  EXPECT_EQ(chosen(), (LoraVariant{.rank_tiles = 4, .cluster = 8}));
  shape.max_rank = 16, shape.num_rank_blocks = 1;
  EXPECT_EQ(chosen(), (LoraVariant{.cluster = 8, .stages = 2}));
  shape.num_tokens = 32;
  EXPECT_EQ(chosen(), (LoraVariant{.cluster = 4, .stages = 2}));
  shape.max_rank = 64;
  EXPECT_EQ(chosen(), (LoraVariant{.rank_tiles = 4, .cluster = 4})) << "up to 32 segments";
}

// Whatever the rules choose has a kernel, of a shrink that takes the segments of the expand; and
// every kernel is chosen for some shape.
TEST(QuantizedVariants, TheTableIsWhatTheRulesChoose) {
  std::vector<LoraVariant> linears, shrinks, expands;
  for (const LoraOp op : {LoraOp::linear, LoraOp::shrink, LoraOp::expand}) {
    for (const int64_t tokens : {1, 8, 32, 33, 64, 65, 128, 256, 257, 1024, 1025, 8192}) {
      for (const int64_t rank : {1, 16, 17, 64, 65, 512}) {
        for (int64_t i = 0; i < 20; ++i) {
          const int64_t slots = std::array{1, 4, 16, 128, 4096}[size_t(i / 4)];
          const LaunchShape shape{.op = op,
                                  .num_tokens = tokens,
                                  .num_in = i % 2 == 0 ? 12288 : 4096,
                                  .max_rank = rank,
                                  .num_slices = 2,
                                  .num_slots = slots,
                                  .num_rank_blocks = (rank + 31) / 32,
                                  .num_columns = 4096,
                                  .idle_sms = i / 2 % 2 == 0 ? 132 : 0,
                                  .num_split_units = 1 << 20};
          const LoraVariant v = choose_quantized_variant(shape, true);
          EXPECT_TRUE(has_quantized_kernel(op, v)) << describe(v);
          const LoraVariant expand = choose_quantized_expand(shape, v.token_tiles, true);
          EXPECT_TRUE(has_quantized_kernel(LoraOp::expand, expand)) << describe(expand);
          EXPECT_EQ(v.token_tiles % expand.token_tiles, 0);
          if (op == LoraOp::shrink) shrinks.push_back(v);
          if (v.launches == 1 && op == LoraOp::linear) linears.push_back(v);
          expands.push_back(expand);
        }
      }
    }
  }
  const auto expect_chosen = [](LoraOp op, const std::vector<LoraVariant>& chosen) {
    for (const LoraVariant& v : quantized_variants(op)) {
      EXPECT_NE(std::ranges::find(chosen, v), chosen.end()) << describe(v);
    }
  };
  expect_chosen(LoraOp::linear, linears);
  expect_chosen(LoraOp::shrink, shrinks);
  expect_chosen(LoraOp::expand, expands);
}

// As of 16-bit weights. Gate and up at batch 128, and o at batch 17 beside 48 columns a tile.
TEST(QuantizedVariants, FewAdaptersAreSummedByStripsOrOnIdleSms) {
  LaunchShape shape{.op = LoraOp::shrink,
                    .num_tokens = 128,
                    .num_in = 4096,
                    .max_rank = 64,
                    .num_slices = 2,
                    .num_slots = 4,
                    .num_rank_blocks = 2};
  const auto chosen = [&shape] { return choose_quantized_variant(shape); };
  EXPECT_EQ(chosen(), (LoraVariant{.rank_tiles = 2, .token_tiles = 4, .cluster = 8}));
  EXPECT_EQ(choose_quantized_expand(shape, 4, true).token_tiles, 4);
  shape.num_slots = 8;
  EXPECT_EQ(chosen(), (LoraVariant{.rank_tiles = 4, .token_tiles = 4, .cluster = 8, .stages = 4}));
  shape.num_tokens = 32, shape.num_slots = 2;
  EXPECT_EQ(chosen(), (LoraVariant{.rank_tiles = 2, .token_tiles = 4, .cluster = 8}));
  EXPECT_EQ(choose_quantized_expand(shape, 4, true).token_tiles, 1);
  shape.num_slots = shape.num_slices = shape.num_rank_blocks = 1;
  shape.num_tokens = 17, shape.idle_sms = 46, shape.num_split_units = 4 * 17;
  LoraVariant one_by_one{.rank_tiles = 2, .cluster = 8, .through_memory = true};
  EXPECT_EQ(chosen(), one_by_one);
  shape.op = LoraOp::linear, one_by_one.launches = 2;
  EXPECT_EQ(chosen(), one_by_one);
  shape.num_split_units = 4 * 17 - 1;
  EXPECT_FALSE(chosen().through_memory);
}

TEST(QuantizedVariants, FewTokensStayInClusters) {
  LaunchShape shape{.op = LoraOp::shrink, .num_tokens = 16, .num_in = 4096, .max_rank = 64};
  shape.idle_sms = 132, shape.num_split_units = 1 << 20;
  EXPECT_EQ(choose_quantized_variant(shape), (LoraVariant{.rank_tiles = 2, .cluster = 8}));
  shape.num_slices = 2, shape.num_rank_blocks = 2;  // by strips
  const LoraVariant strips{.rank_tiles = 2, .token_tiles = 4, .cluster = 8, .through_memory = true};
  EXPECT_EQ(choose_quantized_variant(shape), strips);
}

LoraVariant shrink_of(int64_t tokens, int64_t adapters, int64_t rank, int64_t slices = 1) {
  return choose_quantized_variant({.op = LoraOp::shrink,
                                   .num_tokens = tokens,
                                   .num_in = 4096,
                                   .max_rank = rank,
                                   .num_slices = slices,
                                   .num_slots = adapters,
                                   .num_rank_blocks = slices * ((rank + 63) / 64)});
}

// Timed on an H200: segments of eight tokens, of one slice and of q, k and v.
TEST(QuantizedVariants, FewSegmentsOfOneRankBlockHaveTilesOf32Ranks) {
  constexpr LoraVariant k32{.rank_tiles = 2, .cluster = 8}, k64{.rank_tiles = 4, .cluster = 8};
  EXPECT_EQ(shrink_of(7, 7, 64), k32);
  EXPECT_EQ(shrink_of(8, 8, 64), k64);
  EXPECT_EQ(shrink_of(3, 3, 64, 3), k32);
  EXPECT_EQ(shrink_of(4, 4, 64, 3), k64);
  EXPECT_EQ(shrink_of(1, 1, 65), k64);
  EXPECT_EQ(shrink_of(32, 8, 32), k32) << "32 ranks are all there are";
  EXPECT_EQ(shrink_of(33, 1, 32), k64);
}

TEST(QuantizedVariants, ManyAdaptersHaveSmallClusters) {
  constexpr LoraVariant k8{.rank_tiles = 4, .cluster = 8}, k4{.rank_tiles = 4, .cluster = 4},
      k2{.rank_tiles = 4, .cluster = 2};
  EXPECT_EQ(shrink_of(31, 31, 64), k8);
  EXPECT_EQ(shrink_of(32, 32, 64), k4);
  EXPECT_EQ(shrink_of(32, 16, 64), k8) << "as many tokens of half as many adapters";
  EXPECT_EQ(shrink_of(32, 8, 128, 2), k8) << "44 tiles of adapters of several tokens";
  EXPECT_EQ(shrink_of(32, 8, 128, 3), k4) << "66 tiles";
  EXPECT_EQ(shrink_of(33, 8, 128, 3), k8) << "more than 32 tokens";
  EXPECT_EQ(shrink_of(16, 16, 128), k4);
  EXPECT_EQ(shrink_of(15, 15, 64, 3), k8);
  EXPECT_EQ(shrink_of(16, 16, 64, 3), k4);
  EXPECT_EQ(shrink_of(32, 32, 64, 3), k4);
  EXPECT_EQ(shrink_of(33, 33, 64, 3), k2);
  EXPECT_EQ(shrink_of(23, 23, 32), (LoraVariant{.rank_tiles = 2, .cluster = 8}));
  EXPECT_EQ(shrink_of(24, 24, 32), (LoraVariant{.rank_tiles = 2, .cluster = 4}));
}

// As of 16-bit weights, which choose_variant_test.cpp tests.
TEST(QuantizedVariants, FewTokensOfSmallRanksTakeOneLaunch) {
  LaunchShape shape{.num_tokens = 8, .num_in = 4096, .max_rank = 16, .num_columns = 4096};
  constexpr LoraVariant kOne{.cluster = 8, .stages = 2};
  EXPECT_EQ(choose_quantized_variant(shape, true), kOne);
  EXPECT_EQ(choose_quantized_variant(shape).launches, 2) << "beside 8-bit x";
  shape.num_slots = 8, shape.num_columns = 5000;
  EXPECT_EQ(choose_quantized_variant(shape, true), kOne);
  shape.num_columns = 5001;
  EXPECT_EQ(choose_quantized_variant(shape, true).launches, 2) << "too many columns";
  shape.num_slots = shape.num_split_units = 1;
  EXPECT_EQ(choose_quantized_variant(shape, true).launches, 2) << "behind a product of x";
  shape.op = LoraOp::shrink;
  EXPECT_EQ(choose_quantized_variant(shape, true).launches, 1);
}

struct ExpandOf {
  int64_t tokens, adapters, slices = 1, columns = 4096, rank = 64, num_in = 4096;
};
LoraVariant chosen_expand(const ExpandOf& of, bool h_is_wide) {
  const LaunchShape shape{.num_tokens = of.tokens,
                          .num_in = of.num_in,
                          .max_rank = of.rank,
                          .num_slices = of.slices,
                          .num_slots = of.adapters,
                          .num_columns = of.columns};
  return choose_quantized_expand(shape, 1, h_is_wide);
}
int warps_of(const ExpandOf& of, bool h_is_wide = true) {
  return chosen_expand(of, h_is_wide).warps;
}

TEST(QuantizedVariants, ExpandsOfOneSliceHaveFourWarps) {
  EXPECT_EQ(warps_of({3, 3}), 4);
  EXPECT_EQ(warps_of({4, 4}), 8);
  EXPECT_EQ(warps_of({7, 7}), 8);
  EXPECT_EQ(warps_of({8, 8}), 4);
  EXPECT_EQ(warps_of({12, 12}), 4);
  EXPECT_EQ(warps_of({13, 13}), 8);
  EXPECT_EQ(warps_of({18, 18}), 8);
  EXPECT_EQ(warps_of({19, 19}), 4);
  EXPECT_EQ(warps_of({.tokens = 1, .adapters = 1, .rank = 32}), 8);
  EXPECT_EQ(warps_of({.tokens = 8, .adapters = 8, .rank = 32}), 4);
  EXPECT_EQ(warps_of({.tokens = 1, .adapters = 1, .num_in = 12288}), 8);
  EXPECT_EQ(warps_of({.tokens = 16, .adapters = 16, .num_in = 12288}), 4);
}

TEST(QuantizedVariants, ExpandsOfSeveralSlicesHaveFourWarps) {
  const auto gate_and_up = [](int64_t tokens, int64_t adapters) {
    return warps_of({.tokens = tokens, .adapters = adapters, .slices = 2, .columns = 24576});
  };
  EXPECT_EQ(gate_and_up(1, 1), 4);
  EXPECT_EQ(gate_and_up(8, 1), 8) << "one segment of eight tokens";
  EXPECT_EQ(gate_and_up(32, 8), 4) << "eleven segments";
  EXPECT_EQ(gate_and_up(16, 16), 4);
  EXPECT_EQ(gate_and_up(17, 17), 8) << "many columns";
  const auto qkv = [](int64_t tokens, int64_t adapters, int64_t columns = 6144) {
    return warps_of({.tokens = tokens, .adapters = adapters, .slices = 3, .columns = columns});
  };
  EXPECT_EQ(qkv(4, 4), 4);
  EXPECT_EQ(qkv(5, 5), 8);
  EXPECT_EQ(qkv(8, 1), 8);
  EXPECT_EQ(qkv(11, 11), 8);
  EXPECT_EQ(qkv(12, 12), 4);
  EXPECT_EQ(qkv(32, 32), 4);
  EXPECT_EQ(qkv(32, 32, 6251), 8);
}

// Stages of CTAs of four warps; 0 of eight, which have one.
int stages_of(const ExpandOf& of, bool h_is_wide = true) {
  const LoraVariant v = chosen_expand(of, h_is_wide);
  return v.warps == 4 ? v.stages : 0;
}

TEST(QuantizedVariants, ExpandsOfMoreThan64RanksHaveStages) {
  const auto of_128 = [](int64_t tokens, int64_t adapters, int64_t slices, int64_t columns) {
    return stages_of({tokens, adapters, slices, columns, 128});
  };
  EXPECT_EQ(of_128(4, 4, 1, 4096), 4);
  EXPECT_EQ(of_128(1, 1, 3, 6144), 4);
  EXPECT_EQ(of_128(4, 4, 3, 6144), 2);
  EXPECT_EQ(of_128(8, 8, 1, 4096), 1);
  EXPECT_EQ(of_128(16, 8, 1, 4096), 1) << "nine segments, fewer than two tokens each";
  EXPECT_EQ(of_128(32, 8, 1, 4096), 0) << "several tokens of an adapter";
  EXPECT_EQ(of_128(16, 16, 1, 4096), 4) << "one wave";
  EXPECT_EQ(of_128(11, 11, 3, 6144), 2);
  EXPECT_EQ(of_128(32, 32, 1, 4096), 2);
  EXPECT_EQ(of_128(32, 32, 3, 6144), 0);
  const auto of_256 = [](int64_t tokens, int64_t adapters, int64_t slices, int64_t columns) {
    return stages_of({tokens, adapters, slices, columns, 256});
  };
  EXPECT_EQ(of_256(8, 8, 1, 4096), 4);
  EXPECT_EQ(of_256(9, 9, 1, 4096), 2);
  EXPECT_EQ(of_256(4, 4, 3, 6144), 2);
  EXPECT_EQ(of_256(32, 8, 3, 6144), 2);
  EXPECT_EQ(of_256(32, 32, 3, 6144), 0);
  EXPECT_EQ(stages_of({1, 1, 1, 4096, 128}, /*h_is_wide=*/false), 0);
}

TEST(QuantizedVariants, OtherExpandsHaveEightWarps) {
  EXPECT_EQ(warps_of({8, 8}, /*h_is_wide=*/false), 4);
  EXPECT_EQ(warps_of({32, 8}, /*h_is_wide=*/false), 8);
  EXPECT_EQ(warps_of({.tokens = 8, .adapters = 8, .rank = 16}), 8);
  LaunchShape shape{.num_tokens = 8, .num_in = 4096, .max_rank = 64, .num_slots = 8};
  EXPECT_EQ(choose_quantized_expand(shape, 1, true).warps, 4);
  shape.op = LoraOp::gated_expand;
  EXPECT_EQ(choose_quantized_expand(shape, 1, true).warps, 8);
}

// As timed on an H200, with 8 adapters.
TEST(QuantizedVariants, PrefillTakesWgmmaWhereItPays) {
  LaunchShape shape{
      .op = LoraOp::shrink, .num_tokens = 512, .num_in = 4096, .max_rank = 64, .num_slots = 8};
  const auto chosen = [&shape] { return choose_quantized_variant(shape); };
  const auto by_wgmma = [](int cluster, int stages) {
    return LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = cluster, .stages = stages};
  };
  EXPECT_EQ(chosen(), (LoraVariant{.rank_tiles = 4, .token_tiles = 4, .cluster = 8, .stages = 4}));
  shape.num_tokens = 1024;
  EXPECT_EQ(chosen(), by_wgmma(8, 5));
  shape.num_tokens = 2048;
  EXPECT_EQ(chosen(), by_wgmma(8, 3));
  shape.num_tokens = 4096;
  EXPECT_EQ(chosen(), by_wgmma(4, 3));
  shape.num_slices = shape.num_rank_blocks = 3;
  EXPECT_EQ(chosen(), by_wgmma(2, 5));
  shape.num_tokens = 512;
  EXPECT_EQ(chosen(), by_wgmma(8, 3));
  EXPECT_EQ(choose_quantized_expand(shape, 8, true).token_tiles, 4) << "three panels of h";
  shape.has_wgmma = false;
  EXPECT_FALSE(chosen().needs_wgmma());
}

template <LoraOp kOp, const auto& kVariants, int kHBytes>
std::vector<int> most_shared_bytes() {
  return []<size_t... i>(std::index_sequence<i...>) {
    return std::vector<int>{KernelShape<kVariants[i], kOp, 4, 1, 2, kHBytes>::shared_bytes(512)...};
  }
  (std::make_index_sequence<std::size(kVariants)>{});
}

// h of 512 ranks beside the pipelines, in what a CTA of sm_90 can have.
TEST(QuantizedVariants, FitInSharedMemory) {
  constexpr int kMost = 227 << 10;
  for (const int bytes : most_shared_bytes<LoraOp::linear, kQuantizedLinearVariants, 4>()) {
    EXPECT_LE(bytes, kMost);
  }
  for (const int bytes : most_shared_bytes<LoraOp::shrink, kQuantizedShrinkVariants, 4>()) {
    EXPECT_LE(bytes, kMost);
  }
  for (const int bytes : most_shared_bytes<LoraOp::expand, kQuantizedExpandVariants, 4>()) {
    EXPECT_LE(bytes, kMost);
  }
  for (const int bytes : most_shared_bytes<LoraOp::gated_expand, kQuantizedGatedVariants, 4>()) {
    EXPECT_LE(bytes, kMost);
  }
  for (const int bytes : most_shared_bytes<LoraOp::expand, kQuantizedExpandVariants, 1>()) {
    EXPECT_LE(bytes, kMost);
  }
}

// Two CTAs of three slices of 64 ranks: a KiB of each is the driver's.
TEST(QuantizedVariants, AnSmHasRoomForTwoExpandsByWgmma) {
  constexpr LoraVariant kVariant{.rank_tiles = 4, .token_tiles = 8, .stages = 2};
  constexpr int kSm = 228 << 10;
  EXPECT_LE(2 * ((1 << 10) + KernelShape<kVariant, LoraOp::expand, 2, 1>::shared_bytes(192)), kSm);
}

// Sixteen lanes, four of each of four neighbouring rows, read 8 bytes each: all of 128 bytes.
TEST(SwizzlePairs, HalfAWarpSharesNoBank) {
  for (int first_row = 0; first_row < 32; first_row += 4) {
    for (int vec = 0; vec < 8; vec += 2) {
      std::set<int> banks;
      for (int row = first_row; row < first_row + 4; ++row) {
        for (int q = 0; q < 4; ++q) {
          banks.insert((swizzle_pairs(row, vec + q / 2) + q % 2 * 8) % 128);
        }
      }
      EXPECT_EQ(banks.size(), 16U) << "rows from " << first_row << ", vector " << vec;
    }
  }
}

// The columns of a narrow stage of 8-bit B: one vector or four each.
TEST(SwizzleColumns, BytesShareNoBank) {
  const auto expect_sound = [](auto offset, int vecs) {
    std::set<int> all;
    for (int column = 0; column < 64; ++column) {
      for (int vec = 0; vec < vecs; ++vec) all.insert(offset(column, vec));
    }
    EXPECT_EQ(int(all.size()), 64 * vecs);
    EXPECT_EQ(*all.rbegin(), (64 * vecs - 1) * 16);
    for (int first = 0; first < 8; ++first) {
      for (int vec = 0; vec < vecs; ++vec) {
        std::set<int> banks;
        for (int i = 0; i < 8; ++i) banks.insert(offset(8 * i + first, vec) % 128);
        EXPECT_EQ(banks.size(), 8U);
      }
    }
  };
  expect_sound(swizzle_columns<1>, 1);
  expect_sound(swizzle_columns<4>, 4);
}

}  // namespace
}  // namespace loratory::gpu
