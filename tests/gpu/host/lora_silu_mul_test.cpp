// What LoRA that ends with SwiGLU needs, and what is checked before its launches.
#include <gmock/gmock.h>

#include "gpu/api/lora_layer.hpp"
#include "gpu/plan/quantized_variants.hpp"
#include "gpu/plan/variant_table.hpp"
#include "gpu/runtime/device_ability.hpp"
#include "tests/gpu/host/layer_args.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using testing::HasSubstr;

LoraSliceDesc half_slice(int64_t num_out, int64_t rank = 16) {
  return {.a = device_view(Dtype::bf16, at(0x1000), {4, rank, 64}),
          .b = device_view(Dtype::bf16, at(0x2000), {4, num_out, rank}),
          .ranks = static_cast<const int32_t*>(at(0x3000)),
          .scalings = static_cast<const float*>(at(0x4000))};
}

struct SiluMulCall {
  int64_t num_tokens = 8;
  LoraLayerDesc desc{.slices = {half_slice(32), half_slice(32)},
                     .workspace = at(0x50000),
                     .workspace_bytes = 1 << 20};
  DeviceView x = device_view(Dtype::bf16, at(0x10000), {8, 64});
  DeviceView y = device_view(Dtype::bf16, at(0x20000), {8, 64});
  DeviceView activation = device_view(Dtype::bf16, at(0x28000), {8, 32});
  SegmentView segments{static_cast<const int32_t*>(at(0x30000)),
                       static_cast<const Segment*>(at(0x30010)),
                       static_cast<const int32_t*>(at(0x30100)), 8};
  SiluMulVariants variants{kShrinkVariants[0], kGatedVariants[0]};

  LoraTensors tensors() const { return {.x = x, .h = {}, .y = y}; }
  bool can() const {
    return LoraLayer(desc).silu_mul_variants_for(tensors(), activation).has_value();
  }
  std::string error() const {
    return error_of([&] {
      LoraLayer(desc).launch_silu_mul(variants, tensors(), activation, segments, nullptr);
    });
  }
};

TEST(LoraSiluMul, IsOfGateAndUpAlone) {
  EXPECT_TRUE(SiluMulCall{}.can());
  SiluMulCall call;
  call.desc.slices[1] = half_slice(24);
  EXPECT_FALSE(call.can()) << "slices of two widths";
  call = {};
  call.desc.slices.push_back(half_slice(32));
  call.y = device_view(Dtype::bf16, at(0x20000), {8, 96});
  EXPECT_FALSE(call.can()) << "three slices";
  call = {};
  call.desc.offset_start = 8;
  call.y = device_view(Dtype::bf16, at(0x20000), {8, 72});
  EXPECT_FALSE(call.can()) << "not from column 0 on";
  call = {};
  call.y = device_view(Dtype::bf16, at(0x20000), {8, 72});
  EXPECT_FALSE(call.can()) << "more columns of y";
}

TEST(LoraSiluMul, NeedsWhatItsKernelsAreFor) {
  SiluMulCall call;
  call.desc.op = LoraOp::expand;
  EXPECT_FALSE(call.can());
  call = {};
  call.desc.add_inputs = false;
  EXPECT_FALSE(call.can());
  call = {};
  call.desc.workspace_bytes = 0;
  EXPECT_FALSE(call.can());
  call = {};
  call.desc.experts.num_experts = 2;
  EXPECT_FALSE(call.can());
  call = {};
  call.desc.experts.router_weights = static_cast<const float*>(at(0x60000));
  EXPECT_FALSE(call.can());
  call = {};
  call.y.dtype = Dtype::f32;
  EXPECT_FALSE(call.can());
  call = {};
  call.desc.mode.scale = reference::ScaleMode::folded_b;
  EXPECT_FALSE(call.can());
}

TEST(LoraSiluMul, NeedsAlignedTensors) {
  SiluMulCall call;
  call.x.strides[0] = 65;
  EXPECT_FALSE(call.can());
  call = {};
  call.activation.data = at(0x28002);
  EXPECT_FALSE(call.can());
  call = {};
  call.desc.slices = {half_slice(32, 12), half_slice(32, 12)};
  EXPECT_FALSE(call.can());
}

// h of both slices lies in shared memory at once, in panels of 64 ranks.
TEST(LoraSiluMul, TakesRanksOfUpTo512Together) {
  SiluMulCall call;
  call.desc.slices = {half_slice(32, 256), half_slice(32, 256)};
  EXPECT_TRUE(call.can());
  call.desc.slices = {half_slice(32, 256), half_slice(32, 264)};
  EXPECT_FALSE(call.can());
  call.desc.slices = {half_slice(32, 448), half_slice(32, 64)};
  EXPECT_TRUE(call.can());
}

// The shrink of any step, also where a linear takes one launch.
TEST(LoraSiluMul, IsAShrinkAndAGatedExpand) {
  const LoraLayer layer(SiluMulCall{}.desc);
  EXPECT_EQ(layer.variant_for(SiluMulCall{}.tensors()).launches, 1);
  const auto variants =
      layer.silu_mul_variants_for(SiluMulCall{}.tensors(), SiluMulCall{}.activation);
  ASSERT_TRUE(variants.has_value());
  EXPECT_EQ(variants->shrink.launches, 1);
  EXPECT_TRUE(has_kernel(LoraOp::shrink, variants->shrink));
  EXPECT_TRUE(has_kernel(LoraOp::gated_expand, variants->expand));
}

// Beside wide x.
TEST(LoraSiluMul, IsOf8BitWeightsToo) {
  SiluMulCall call;
  for (LoraSliceDesc& s : call.desc.slices) {
    s.a.dtype = s.b.dtype = Dtype::f8_e4m3fn;
    s.a_scale = s.b_scale = device_view(Dtype::f32, at(0x5000), {4});
  }
  const auto variants = LoraLayer(call.desc).silu_mul_variants_for(call.tensors(), call.activation);
  ASSERT_TRUE(variants.has_value());
  EXPECT_TRUE(has_quantized_kernel(LoraOp::shrink, variants->shrink));
  EXPECT_TRUE(has_quantized_kernel(LoraOp::gated_expand, variants->expand));
  call.variants = {kQuantizedShrinkVariants[0], {.rank_tiles = 4, .warps = 4}};
  EXPECT_THAT(call.error(), HasSubstr("gated_expand has no kernel"));
  call.y.dtype = Dtype::f16;
  EXPECT_FALSE(call.can()) << "x is bf16";
}

// By wgmma.
TEST(LoraSiluMul, IsOf8BitWeightsInPrefillToo) {
  SiluMulCall call;
  call.desc.slices = {half_slice(32, 64), half_slice(32, 64)};
  for (LoraSliceDesc& s : call.desc.slices) {
    s.a.dtype = s.b.dtype = Dtype::f8_e4m3fn;
    s.a_scale = s.b_scale = device_view(Dtype::f32, at(0x5000), {4});
  }
  call.x.shape[0] = call.y.shape[0] = call.activation.shape[0] = 1024;
  const auto variants = LoraLayer(call.desc).silu_mul_variants_for(call.tensors(), call.activation);
  ASSERT_TRUE(variants.has_value());
  EXPECT_TRUE(variants->shrink.needs_wgmma());
  EXPECT_EQ(variants->expand, (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .stages = 2}));
}

TEST(LoraSiluMul, NamesWhatDoesNotFit) {
  SiluMulCall call;
  call.activation.shape[1] = 31;
  EXPECT_EQ(call.error(), "lora_linear: activation: has shape [8, 31], needs [8, 32]");
  call = {};
  call.activation.dtype = Dtype::f16;
  EXPECT_EQ(call.error(), "lora_linear: activation: is f16, y is bf16");
  call = {};
  call.activation.strides[0] = 24;
  EXPECT_EQ(call.error(), "lora_linear: activation: has rows that overlap");
  call = {};
  call.activation.data = call.y.data;
  EXPECT_EQ(call.error(), "lora_linear: activation: overlaps y");
  call = {};
  call.activation.data = nullptr;
  EXPECT_EQ(call.error(), "lora_linear: activation: is null");
  call = {};
  call.segments.segment_size = 16;
  EXPECT_EQ(call.error(), "lora_linear: segments: has segments of 16 tokens, the kernel needs 8");
  call = {};
  call.desc.add_inputs = false;
  EXPECT_EQ(call.error(),
            "lora_linear: activation: this layer and these tensors cannot end with SwiGLU");
}

TEST(LoraSiluMul, NamesVariantsThatCannotBe) {
  SiluMulCall call;
  call.variants.expand = {.stages = 3, .aligned = false};
  EXPECT_THAT(call.error(), HasSubstr("variant: lora_gated_expand has no kernel: rank_tiles=1"));
  call = {};
  call.variants.shrink.stages = 7;
  EXPECT_THAT(call.error(), HasSubstr("variant: lora_shrink has no kernel: rank_tiles=1"));
  call = {};
  call.variants.expand = {.token_tiles = 4, .stages = 2};
  EXPECT_THAT(call.error(), HasSubstr("variant: has an expand that does not divide"));
  LoraLayerDesc desc = call.desc;
  desc.op = LoraOp::gated_expand;
  EXPECT_EQ(error_of([&] { const LoraLayer layer(desc); }),
            "lora_gated_expand: op: is that of a launch, not of a layer");
}

// --- the shrink of the next layer -------------------------------------------------------------

/// gate|up and down with room for rank 64 and a step of 2,048 tokens.
struct NextCall {
  static constexpr int64_t kTokens = 2048, kSize = 2048;
  static LoraSliceDesc slice(int64_t num_in, int64_t num_out, int64_t rank = 64) {
    LoraSliceDesc out = half_slice(num_out, rank);
    out.a = device_view(Dtype::bf16, at(0x1000), {4, rank, num_in});
    return out;
  }
  static LoraLayerDesc desc(std::vector<LoraSliceDesc> slices) {
    return {.slices = std::move(slices), .workspace = at(0x50000), .workspace_bytes = 1 << 22};
  }

  LoraLayerDesc gate_up = desc({slice(64, kSize), slice(64, kSize)});
  LoraLayerDesc down = desc({slice(kSize, 64)});
  int64_t num_tokens = kTokens;

  bool shrinks_next() const {
    const LoraLayer next(down);
    const int64_t size = gate_up.slices[0].b.shape[1];
    const LoraTensors tensors{.x = device_view(Dtype::bf16, at(0x10000), {num_tokens, 64}),
                              .h = {},
                              .y = device_view(Dtype::bf16, at(0x20000), {num_tokens, 2 * size}),
                              .max_adapters = 1};
    const DeviceView activation =
        device_view(Dtype::bf16, at(uintptr_t{1} << 40), {num_tokens, size});
    const auto variants = LoraLayer(gate_up).silu_mul_variants_for(tensors, activation, &next);
    if (!variants) return false;
    EXPECT_TRUE(has_kernel(variants->expand_op(), variants->expand)) << variants->expand;
    return variants->shrinks_next;
  }
};

TEST(LoraSiluMul, ShrinksForDownInLongPrefill) {
  if (!has_wgmma()) GTEST_SKIP() << "on a GPU without wgmma";
  NextCall call;
  EXPECT_TRUE(call.shrinks_next());
  call.num_tokens = 1024;
  EXPECT_FALSE(call.shrinks_next()) << "the splits fill half a wave";
}

TEST(LoraSiluMul, ShrinksForALayerOfTheSameKindAlone) {
  const auto with = [](auto change) {
    NextCall call;
    change(call);
    return call.shrinks_next();
  };
  EXPECT_FALSE(with([](NextCall& c) { c.down.slices[0] = c.slice(2056, 64); })) << "other x";
  EXPECT_FALSE(with([](NextCall& c) { c.down.slices[0] = c.slice(2048, 64, 72); })) << "rank";
  EXPECT_FALSE(with([](NextCall& c) { c.down.slices.push_back(c.down.slices[0]); })) << "slices";
  EXPECT_FALSE(with([](NextCall& c) { c.down.op = LoraOp::shrink; })) << "half a linear";
  EXPECT_FALSE(with([](NextCall& c) { c.down.slices[0].a_rank_steps = 1; })) << "packed A";
  EXPECT_FALSE(with([](NextCall& c) { c.down.experts.rows_per_x = 2; })) << "experts";
  EXPECT_FALSE(with([](NextCall& c) {
    c.down.slices[0].a.shape[0] = c.down.slices[0].b.shape[0] = 3;
  })) << "other slots";
  EXPECT_FALSE(with([](NextCall& c) {  // the last split has 64 columns, 64 sums need 128
    c.gate_up.slices.assign(2, c.slice(64, 7 * 256 + 64));
    c.down.slices[0] = c.slice(7 * 256 + 64, 64);
  })) << "a short last split";
}

TEST(LoraSiluMul, NamesWhatDoesNotFitBehindSplits) {
  if (!has_wgmma()) GTEST_SKIP() << "on a GPU without wgmma";
  const DeviceView x = device_view(Dtype::bf16, at(0x10000), {8, 2048});
  DeviceView y = device_view(Dtype::bf16, at(0x20000), {8, 64});
  DeviceView splits = device_view(Dtype::bf16, at(0x100000), {8, 4096});
  SegmentView segments = SiluMulCall{}.segments;
  LoraLayerDesc down = NextCall{}.down;
  const auto error = [&] {
    return error_of([&] {
      LoraLayer(down).launch_behind_splits({.x = x, .h = {}, .y = y}, splits, segments, nullptr);
    });
  };
  segments.segment_size = 32;
  EXPECT_EQ(error(), "lora_linear: segments: has segments of 32 tokens, the kernel needs 64");
  segments.segment_size = 64;
  splits.shape[0] = 7;
  EXPECT_THAT(error(), HasSubstr("splits: is not the y that"));
  splits.shape[0] = 8, splits.shape[1] = 2048;
  EXPECT_THAT(error(), HasSubstr("splits: is not the y that"));
  splits.shape[1] = 4096, splits.data = at(0x100002);
  EXPECT_THAT(error(), HasSubstr("splits: is not the y that"));
  splits.data = at(0x100000), splits.dtype = Dtype::f16;
  EXPECT_THAT(error(), HasSubstr("splits: is not the y that"));
  splits.dtype = Dtype::bf16, y.strides[0] = 65;
  EXPECT_THAT(error(), HasSubstr("y: or x is not what"));
  y.strides[0] = 64, down.slices[0] = NextCall{}.slice(2048, 64, 128);
  EXPECT_THAT(error(), HasSubstr("splits: are of no layer that a launch_silu_mul() shrinks for"));
}

TEST(LoraSiluMul, NamesANextLayerThatDoesNotFit) {
  SiluMulCall call;
  call.variants = {{.rank_tiles = 4, .token_tiles = 8, .cluster = 8, .stages = 3},
                   kGatedShrinkVariants[0],
                   /*shrinks_next=*/true};
  call.segments.segment_size = 64;
  if (!has_wgmma()) {
    EXPECT_THAT(call.error(), HasSubstr("variant: needs what this GPU lacks"));
    return;
  }
  EXPECT_EQ(call.error(), "lora_linear: next: cannot be shrunk with this layer");
}

}  // namespace
}  // namespace loratory::gpu
