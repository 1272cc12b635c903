// What a shrink and an expand check before a launch. lora_linear_test.cpp has what all operations
// share.
#include <gmock/gmock.h>

#include "gpu/api/lora_layer.hpp"
#include "gpu/plan/variant_table.hpp"
#include "tests/gpu/host/layer_args.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using testing::HasSubstr;
using testing::StartsWith;

const int32_t* ranks() { return static_cast<const int32_t*>(at(0x3000)); }
const float* scalings() { return static_cast<const float*>(at(0x4000)); }

const SegmentView kSegments{static_cast<const int32_t*>(at(0x30000)),
                            static_cast<const Segment*>(at(0x30010)),
                            static_cast<const int32_t*>(at(0x30100)), 8};

LoraLayerDesc shrink_desc() {
  const auto a = [](int64_t rank) { return device_view(Dtype::bf16, at(0x1000), {4, rank, 64}); };
  return {.op = LoraOp::shrink,
          .slices = {{.a = a(16), .ranks = ranks()}, {.a = a(24), .ranks = ranks()}},
          .split_sums = at(0x40000),
          .split_sums_bytes = split_sums_bytes(8, 2, 24)};
}

struct ShrinkCall {
  DeviceView x = device_view(Dtype::bf16, at(0x10000), {8, 64});
  DeviceView h = device_view(Dtype::f32, at(0x20000), {2, 8, 24});
  SegmentView segments = kSegments;

  std::string error() const {
    return error_of([&] { LoraLayer(shrink_desc()).launch({.x = x, .h = h}, segments, nullptr); });
  }
};

TEST(LoraShrink, NamesWhatDoesNotFit) {
  EXPECT_EQ(LoraLayer(shrink_desc()).max_rank(), 24);
  LoraLayerDesc d = shrink_desc();
  d.slices.clear();
  EXPECT_THAT(error_of(d), StartsWith("lora_shrink: slices: has 0 slices, needs 1 to 8"));
  d = shrink_desc();
  d.slices[1].a.shape[0] = 5;
  EXPECT_THAT(error_of(d), HasSubstr("slices[1].a: has 5 slots, the layer's first weight 4"));
  d = shrink_desc();
  d.slices[1].a.dtype = Dtype::f16;
  EXPECT_THAT(error_of(d), HasSubstr("slices[1].a: is f16, the layer's first weight is bf16"));
  d = shrink_desc();
  d.slices[1].a.shape[2] = 63;
  EXPECT_THAT(error_of(d), HasSubstr("slices[1].a: needs the in-features of slice 0"));
  d = shrink_desc();
  d.slices[0].a.shape[1] = 0;
  EXPECT_THAT(error_of(d), HasSubstr("slices[0].a: has room for rank 0, needs 1 to 512"));
  d = shrink_desc();
  d.slices[0].ranks = nullptr;
  EXPECT_THAT(error_of(d), HasSubstr("slices[0].ranks: is null"));
}

TEST(LoraShrink, ChecksEachLaunch) {
  ShrinkCall call;
  call.x.shape[1] = 63;
  EXPECT_THAT(call.error(), StartsWith("lora_shrink: x: has 63 columns, the layer 64"));
  call = {};
  call.h.shape[0] = 3;
  EXPECT_THAT(call.error(), HasSubstr("h: has 3 slices, the layer 2"));
  call = {};
  call.h.shape[1] = 7;
  EXPECT_THAT(call.error(), HasSubstr("h: has 7 rows, x has 8"));
  call = {};
  call.h.shape[2] = 23;
  EXPECT_THAT(call.error(), HasSubstr("h: has room for rank 23, the layer for 24"));
  call = {};
  call.h.strides[1] = 23;
  EXPECT_THAT(call.error(), HasSubstr("h: has rows that overlap"));
  call = {};
  call.h.strides[0] = 0;
  EXPECT_THAT(call.error(), HasSubstr("h: has rows that overlap"));
  call = {};
  call.h.strides[2] = 2;
  EXPECT_THAT(call.error(), HasSubstr("h: needs an innermost stride of 1"));
  call = {};
  call.h.num_axes = 2;
  EXPECT_THAT(call.error(), HasSubstr("h: has shape [2, 8], needs 3 axes"));
  call = {};
  call.h.data = nullptr;
  EXPECT_THAT(call.error(), HasSubstr("h: is null"));
  call = {};
  for (const int32_t size : {-8, 0, 7, 16}) {  // a multiple is not enough
    call.segments.segment_size = size;
    EXPECT_EQ(call.error(), "lora_shrink: segments: has segments of " + std::to_string(size) +
                                " tokens, the kernel needs 8");
  }
  call = {};
  call.segments.token_indices = nullptr;
  EXPECT_THAT(call.error(), HasSubstr("segments: is null"));
}

LoraLayerDesc expand_desc() {
  const auto b = [](int64_t num_out) {
    return device_view(Dtype::bf16, at(0x2000), {4, num_out, 16});
  };
  return {.op = LoraOp::expand,
          .slices = {{.b = b(32), .ranks = ranks(), .scalings = scalings()},
                     {.b = b(16), .ranks = ranks(), .scalings = scalings()}}};
}

struct ExpandCall {
  DeviceView h = device_view(Dtype::f32, at(0x10000), {2, 8, 16});
  DeviceView y = device_view(Dtype::bf16, at(0x20000), {8, 48});
  SegmentView segments = kSegments;

  std::string error() const {
    return error_of([&] { LoraLayer(expand_desc()).launch({.h = h, .y = y}, segments, nullptr); });
  }
};

TEST(LoraExpand, NamesWhatDoesNotFit) {
  EXPECT_EQ(LoraLayer(expand_desc()).num_columns(), 48);
  LoraLayerDesc d = expand_desc();
  d.slices.clear();
  EXPECT_THAT(error_of(d), StartsWith("lora_expand: slices: has 0 slices, needs 1 to 8"));
  d = expand_desc();
  d.slices[1].b.shape[0] = 5;
  EXPECT_THAT(error_of(d), HasSubstr("slices[1].b: has 5 slots, the layer's first weight 4"));
  d = expand_desc();
  d.slices[0].b.dtype = Dtype::f32;
  EXPECT_THAT(error_of(d), HasSubstr("slices[1].b: is bf16, the layer's first weight is f32"));
  d = expand_desc();
  d.slices[0].b.shape[2] = 513;
  EXPECT_THAT(error_of(d), HasSubstr("slices[0].b: has room for rank 513, needs 1 to 512"));
  d = expand_desc();
  d.slices[1].scalings = nullptr;
  EXPECT_THAT(error_of(d), HasSubstr("slices[1].scalings: is null"));
  d = expand_desc();
  d.offset_start = -1;
  EXPECT_THAT(error_of(d), HasSubstr("offset_start: is negative"));
  d = expand_desc();
  d.offset_start = INT32_MAX;
  EXPECT_THAT(error_of(d), HasSubstr("slices[0]: ends at column 2^31 or later"));
}

TEST(LoraExpand, ChecksEachLaunch) {
  ExpandCall call;
  call.y.shape[1] = 47;
  EXPECT_THAT(call.error(), StartsWith("lora_expand: y: has 47 columns, the slices end at 48"));
  call = {};
  call.y.strides[0] = 47;
  EXPECT_THAT(call.error(), HasSubstr("y: has rows that overlap"));
  call = {};
  call.h.shape[0] = 1;
  EXPECT_THAT(call.error(), HasSubstr("h: has 1 slices, the layer 2"));
  call = {};
  call.h.shape[1] = 9;
  EXPECT_THAT(call.error(), HasSubstr("h: has 9 rows, y has 8"));
  call = {};
  call.h.shape[2] = 15;
  EXPECT_THAT(call.error(), HasSubstr("h: has room for rank 15, the layer for 16"));
  call = {};
  call.h.dtype = Dtype::i8;
  EXPECT_THAT(call.error(), HasSubstr("h: is i8, needs f32, bf16 or f16"));
  call = {};
  call.segments.num_segments = nullptr;
  EXPECT_THAT(call.error(), HasSubstr("segments: is null"));
}

/// Of a launch with lists of such segments and no token to launch anything for.
std::string error_of_size(const LoraVariant& variant, int32_t segment_size) {
  ExpandCall call;
  call.h = device_view(Dtype::f32, nullptr, {2, 0, 16});
  call.y = device_view(Dtype::bf16, nullptr, {0, 48});
  call.segments.segment_size = segment_size;
  return error_of([&] {
    LoraLayer(expand_desc())
        .launch_variant(variant, {.h = call.h, .y = call.y}, call.segments, nullptr);
  });
}

// A shrink's list is good enough for the expand behind it.
TEST(LoraExpand, TakesSegmentsOfAMultipleOfItsTokens) {
  const LoraVariant narrow{.stages = 1}, wide{.rank_tiles = 2, .token_tiles = 4, .stages = 2};
  for (const int32_t size : {8, 16, 32, 64}) EXPECT_EQ(error_of_size(narrow, size), "");
  for (const int32_t size : {32, 64}) EXPECT_EQ(error_of_size(wide, size), "");
  const auto error = [](int32_t size, const char* wanted) {
    return "lora_expand: segments: has segments of " + std::to_string(size) +
           " tokens, the kernel needs a multiple of " + wanted;
  };
  for (const int32_t size : {-8, 0, 1, 7, 12}) {
    EXPECT_EQ(error_of_size(narrow, size), error(size, "8"));
  }
  for (const int32_t size : {-32, 0, 8, 12, 33, 48}) {
    EXPECT_EQ(error_of_size(wide, size), error(size, "32"));
  }
}

/// Of a launch without tokens: everything is checked, and nothing launched.
std::string error_of_shrink(const LoraVariant& variant) {
  ShrinkCall call;
  call.x = device_view(Dtype::bf16, nullptr, {0, 64});
  call.h = device_view(Dtype::f32, nullptr, {2, 0, 24});
  call.segments.segment_size = variant.segment_size();
  return error_of([&] {
    LoraLayer(shrink_desc())
        .launch_variant(variant, {.x = call.x, .h = call.h}, call.segments, nullptr);
  });
}

// P12: wide variants of one CTA among them, which the rules choose for long prefill.
TEST(LoraShrink, TakesEveryVariantThatHasAKernel) {
  int num_wide_single = 0;
  for (const LoraVariant& v : variants_of(LoraOp::shrink)) {
    EXPECT_EQ(error_of_shrink(v), "") << v;
    num_wide_single += v.is_wide() && v.cluster == 1 ? 1 : 0;
  }
  EXPECT_EQ(num_wide_single, 3);
}

TEST(LoraShrink, NamesAVariantWithoutAKernel) {
  EXPECT_EQ(error_of_shrink({.rank_tiles = 4, .cluster = 2, .stages = 4}),
            "lora_shrink: variant: has no kernel: rank_tiles=4 token_tiles=1 cluster=2 stages=4 "
            "aligned=true launches=1 through_memory=false warps=8");
  EXPECT_THAT(error_of_shrink({.cluster = 8, .stages = 2, .launches = 2}),
              HasSubstr("variant: has no kernel"));
  EXPECT_THAT(error_of_shrink({.rank_tiles = 0, .cluster = 8, .stages = 2}),
              HasSubstr("variant: has no kernel"));
}

// The generic path takes any variant, for the segments that it says.
TEST(LoraExpand, NamesAVariantOfNoSize) {
  const auto error = [](const LoraVariant& v, Dtype y) {
    const ExpandCall call;
    const LoraTensors tensors{.h = call.h, .y = device_view(y, at(0x20000), {8, 48})};
    return error_of(
        [&] { LoraLayer(expand_desc()).launch_variant(v, tensors, call.segments, nullptr); });
  };
  EXPECT_THAT(error({.warps = 0}, Dtype::bf16), HasSubstr("variant: has no kernel"));
  for (const LoraVariant& v : {LoraVariant{.warps = 0}, LoraVariant{.token_tiles = 0},
                               LoraVariant{.cluster = 0}, LoraVariant{.rank_tiles = 0}}) {
    EXPECT_THAT(error(v, Dtype::f16), HasSubstr("variant: needs positive sizes"));
  }
}

// Eight tokens and three rank tiles, for which there are four.
TEST(LoraShrink, NamesTooFewSplitSums) {
  const LoraVariant variant{.cluster = 8, .stages = 2, .through_memory = true};
  ShrinkCall call;
  const auto error_of_bytes = [&](size_t bytes) {
    LoraLayerDesc d = shrink_desc();
    d.split_sums_bytes = bytes;
    return error_of([&] {
      LoraLayer(d).launch_variant(variant, {.x = call.x, .h = call.h}, call.segments, nullptr);
    });
  };
  EXPECT_EQ(error_of_bytes(32 * 516 - 1),
            "lora_shrink: split_sums: has 16511 bytes, the variant needs 16512");
  LoraLayerDesc d = shrink_desc();
  d.split_sums = at(0x40008);
  EXPECT_EQ(error_of(d), "lora_shrink: split_sums: is not at a multiple of 16 bytes");
}

// No tokens: nothing to launch, whatever the strides are.
TEST(LoraHalves, NoTokensIsNothingToDo) {
  ShrinkCall shrink;
  shrink.x = device_view(Dtype::bf16, nullptr, {0, 64});
  shrink.h = device_view(Dtype::f32, nullptr, {2, 0, 24});
  EXPECT_EQ(shrink.error(), "");
  ExpandCall expand;
  expand.h = device_view(Dtype::f32, nullptr, {2, 0, 16});
  expand.y = device_view(Dtype::bf16, nullptr, {0, 48});
  EXPECT_EQ(expand.error(), "");
}

// Each operation asks for vector accesses of the tensors that it reads and writes in vectors.
TEST(LoraHalves, TellWhatIsAligned) {
  const LoraLayer down(shrink_desc());
  ShrinkCall shrink;
  EXPECT_TRUE(down.variant_for({.x = shrink.x, .h = shrink.h}).aligned);
  shrink.h.data = at(0x20004);  // h in single numbers
  EXPECT_TRUE(down.variant_for({.x = shrink.x, .h = shrink.h}).aligned);
  shrink.x.strides[0] = 65;
  EXPECT_FALSE(down.variant_for({.x = shrink.x, .h = shrink.h}).aligned);
  const LoraLayer up(expand_desc());
  ExpandCall expand;
  EXPECT_TRUE(up.variant_for({.h = expand.h, .y = expand.y}).aligned);
  expand.y.data = at(0x20002);
  EXPECT_FALSE(up.variant_for({.h = expand.h, .y = expand.y}).aligned);
}

}  // namespace
}  // namespace loratory::gpu
