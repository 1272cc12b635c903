// What is checked before a launch: no GPU is needed to be told what is wrong.
#include "gpu/api/lora_layer.hpp"

#include <gmock/gmock.h>

#include "tests/gpu/host/layer_args.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using testing::HasSubstr;

LoraSliceDesc slice(int64_t num_out, int64_t num_in = 64, int64_t rank = 16) {
  return {.a = device_view(Dtype::bf16, at(0x1000), {4, rank, num_in}),
          .b = device_view(Dtype::bf16, at(0x2000), {4, num_out, rank}),
          .ranks = static_cast<const int32_t*>(at(0x3000)),
          .scalings = static_cast<const float*>(at(0x4000))};
}

LoraLayerDesc desc() { return {.slices = {slice(32), slice(16)}}; }

TEST(LoraLinear, KnowsItsColumns) {
  const LoraLayer layer(desc());
  EXPECT_EQ(layer.num_columns(), 48);
  EXPECT_EQ(layer.max_rank(), 16);
}

TEST(LoraLinear, NamesWhatDoesNotFit) {
  LoraLayerDesc d = desc();
  d.slices.clear();
  EXPECT_THAT(error_of(d), HasSubstr("lora_linear: slices: has 0 slices, needs 1 to 8"));
  d.slices.assign(9, slice(16));
  EXPECT_THAT(error_of(d), HasSubstr("slices: has 9 slices, needs 1 to 8"));
  d = desc();
  d.slices[1].a.shape[0] = -1;
  EXPECT_THAT(error_of(d), HasSubstr("slices[1].a: has a negative size"));
  d = desc();
  d.slices[1].b.shape[1] = INT32_MAX;
  EXPECT_THAT(error_of(d), HasSubstr("slices[1].b: has an axis of 2^31 or more"));
  d = desc();
  d.slices[0].a.strides[0] = -64;
  EXPECT_THAT(error_of(d), HasSubstr("slices[0].a: has a negative stride"));
  d = desc();
  d.slices[1].a.dtype = Dtype::f16;
  EXPECT_THAT(error_of(d), HasSubstr("slices[1].a: is f16, the layer's first weight is bf16"));
  d = desc();
  d.slices[1].b.dtype = Dtype::f16;
  EXPECT_THAT(error_of(d), HasSubstr("slices[1].b: is f16, the layer's first weight is bf16"));
  d = desc();
  d.slices[1].b.shape[0] = 5;
  EXPECT_THAT(error_of(d), HasSubstr("slices[1].b: has 5 slots, the layer's first weight 4"));
  d = desc();
  d.slices[1] = slice(16, 65);
  EXPECT_THAT(error_of(d), HasSubstr("slices[1].a: needs the in-features of slice 0"));
  d = desc();
  d.slices[0].b.shape[2] = 8;
  EXPECT_THAT(error_of(d), HasSubstr("slices[0].b: differs from a in rank"));
  d = desc();
  d.slices[0] = slice(32, 64, 513);
  EXPECT_THAT(error_of(d), HasSubstr("slices[0].a: has room for rank 513, needs 1 to 512"));
  d = desc();
  d.slices[0].a.strides[2] = 2;
  EXPECT_THAT(error_of(d), HasSubstr("slices[0].a: needs an innermost stride of 1"));
  d = desc();
  d.slices[0].b.data = at(0x2001);
  EXPECT_THAT(error_of(d), HasSubstr("slices[0].b: is not aligned to its numbers"));
  d = desc();
  d.slices[0].a.data = nullptr;
  EXPECT_THAT(error_of(d), HasSubstr("slices[0].a: is null"));
  d = desc();
  d.slices[1].ranks = nullptr;
  EXPECT_THAT(error_of(d), HasSubstr("slices[1].ranks: is null"));
  d = desc();
  d.slices[1].scalings = nullptr;
  EXPECT_THAT(error_of(d), HasSubstr("slices[1].scalings: is null"));
  d = desc();
  d.slices[0].a.dtype = Dtype::f32;
  EXPECT_THAT(error_of(d), HasSubstr("slices[0].b: is bf16, the layer's first weight is f32"));
  d = desc();
  d.slices[1].a_rank_steps = 8;
  EXPECT_THAT(error_of(d), HasSubstr("slices[1].a_rank_steps: is outside [0, 8)"));
  d = desc();
  d.offset_start = -1;
  EXPECT_THAT(error_of(d), HasSubstr("offset_start: is negative"));
}

// Slots may lie any distance apart; the bytes of a row of A or B must fit 31 bits.
TEST(LoraLinear, RowsAreBelow2To30Numbers) {
  constexpr int64_t kMost = (int64_t{1} << 30) - 8;
  LoraLayerDesc d = desc();
  d.slices[0].a.strides[0] = int64_t{1} << 40;
  d.slices[0].a.strides[1] = d.slices[1].b.strides[1] = kMost;
  EXPECT_EQ(error_of(d), "");
  d.slices[0].a.strides[1] = kMost + 8;
  EXPECT_THAT(error_of(d), HasSubstr("slices[0].a: has rows of 2^30 numbers or more"));
  d = desc();
  d.slices[1].b.strides[1] = kMost + 8;
  EXPECT_THAT(error_of(d), HasSubstr("slices[1].b: has rows of 2^30 numbers or more"));
}

struct Call {
  DeviceView x = device_view(Dtype::bf16, at(0x10000), {8, 64});
  DeviceView y = device_view(Dtype::bf16, at(0x20000), {8, 48});
  SegmentView segments{static_cast<const int32_t*>(at(0x30000)),
                       static_cast<const Segment*>(at(0x30010)),
                       static_cast<const int32_t*>(at(0x30100)), 8};

  std::string error() const {
    return error_of([&] { LoraLayer(desc()).launch({.x = x, .y = y}, segments, nullptr); });
  }
};

TEST(LoraLinear, ChecksEachLaunch) {
  Call call;
  call.x.shape[1] = 63;
  EXPECT_THAT(call.error(), HasSubstr("x: has 63 columns, the layer 64"));
  call = {};
  call.y.shape[1] = 47;
  EXPECT_THAT(call.error(), HasSubstr("y: has 47 columns, the slices end at 48"));
  call = {};
  call.y.shape[0] = 9;
  EXPECT_THAT(call.error(), HasSubstr("y: has 9 rows, x has 8"));
  call = {};
  call.y.strides[0] = 47;
  EXPECT_THAT(call.error(), HasSubstr("y: has rows that overlap"));
  call = {};
  call.x.dtype = Dtype::i8;
  EXPECT_THAT(call.error(), HasSubstr("x: is i8, needs f32, bf16 or f16"));
  call = {};
  call.x.num_axes = 0;
  EXPECT_THAT(call.error(), HasSubstr("x: has shape [], needs 2 axes"));
  call.x.num_axes = 1 << 30;
  EXPECT_THAT(call.error(), HasSubstr("x: has shape [8, 64, 0], needs 2 axes"));
  call = {};
  call.segments.segment_size = 16;
  EXPECT_THAT(call.error(), HasSubstr("segments: has segments of 16 tokens, the kernel needs 8"));
  call = {};
  call.segments.segments = nullptr;
  EXPECT_THAT(call.error(), HasSubstr("segments: is null"));
}

// Whole accesses or single numbers: by what every row of every tensor allows.
TEST(LoraLinear, TellsWhatIsAligned) {
  const LoraLayer layer(desc());
  const Call call;
  EXPECT_TRUE(layer.variant_for({.x = call.x, .y = call.y}).aligned);
  Call other;
  other.x.strides[0] = 65;
  EXPECT_FALSE(layer.variant_for({.x = other.x, .y = other.y}).aligned);
  other = {};
  other.y.data = at(0x20002);
  EXPECT_FALSE(layer.variant_for({.x = other.x, .y = other.y}).aligned);
  LoraLayerDesc odd = desc();
  odd.offset_start = 1;
  EXPECT_FALSE(LoraLayer(odd).variant_for({.x = call.x, .y = call.y}).aligned);
  odd = desc();
  odd.slices[1] = slice(16, 64, 12);
  EXPECT_FALSE(LoraLayer(odd).variant_for({.x = call.x, .y = call.y}).aligned);
  odd = desc();
  odd.slices[1].a.strides[1] = 65;
  EXPECT_FALSE(LoraLayer(odd).variant_for({.x = call.x, .y = call.y}).aligned);
}

LoraLayerDesc with_workspace(size_t num_bytes) {
  LoraLayerDesc d = desc();
  d.workspace = at(0x50000);
  d.workspace_bytes = num_bytes;
  return d;
}

/// What a launch of `variant` is told, with a workspace of so many bytes.
std::string launch_error(const LoraVariant& variant, const Call& call, size_t num_bytes) {
  return error_of([&] {
    LoraLayer(with_workspace(num_bytes))
        .launch_variant(variant, {.x = call.x, .y = call.y}, call.segments, nullptr);
  });
}

// Rows of h begin at multiples of 16 bytes.
TEST(WorkspaceBytes, HasRowsOfAMultipleOfFourRanks) {
  EXPECT_EQ(workspace_bytes(1000, 2, 16), size_t{2 * 1000 * 16 * 4});
  EXPECT_EQ(workspace_bytes(10, 1, 17), size_t{10 * 20 * 4});
  EXPECT_EQ(workspace_bytes(10, 1, 20), workspace_bytes(10, 1, 17));
  EXPECT_EQ(workspace_bytes(10, 1, 21), size_t{10 * 24 * 4});
  EXPECT_EQ(workspace_bytes(1, 1, 1), 16u);
  EXPECT_EQ(workspace_bytes(0, 1, 16), 0u);
}

// Two launches if h has room between them, which does not depend on the batch.
TEST(LoraLinear, TakesTwoLaunchesWithAWorkspaceOnly) {
  Call call;
  call.x.shape[0] = call.y.shape[0] = 1000;
  const size_t enough = workspace_bytes(1000, 2, 16);
  const auto launches = [&](const LoraLayerDesc& d) {
    return LoraLayer(d).variant_for({.x = call.x, .y = call.y}).launches;
  };
  EXPECT_EQ(launches(desc()), 1);
  EXPECT_EQ(launches(with_workspace(enough)), 2);
  EXPECT_EQ(launches(with_workspace(enough - 1)), 1);
  LoraLayerDesc odd = with_workspace(enough);
  odd.workspace = at(0x50001);
  EXPECT_THAT(error_of(odd), HasSubstr("workspace: is not aligned to its numbers"));
}

// Of ranks that no row of h is exactly as wide as.
TEST(LoraLinear, TheWorkspaceHasRoomForPaddedRanks) {
  Call call;
  LoraLayerDesc d = with_workspace(workspace_bytes(8, 2, 17));
  d.slices = {slice(32, 64, 17), slice(16, 64, 17)};
  EXPECT_EQ(d.workspace_bytes, size_t{2 * 8 * 20 * 4});
  const LoraVariant unaligned{
      .rank_tiles = 2, .cluster = 8, .stages = 2, .aligned = false, .launches = 2};
  --d.workspace_bytes;
  const std::string error = error_of([&] {
    LoraLayer(d).launch_variant(unaligned, {.x = call.x, .y = call.y}, call.segments, nullptr);
  });
  EXPECT_EQ(error, "lora_linear: workspace: has 1279 bytes, the variant needs 1280");
}

TEST(LoraLinear, TwoLaunchesWithoutAWorkspaceAreRefused) {
  Call call;
  call.x.shape[0] = call.y.shape[0] = 1000;
  for (const LoraVariant& narrow : {LoraVariant{.cluster = 8, .stages = 2, .launches = 2},
                                    {.rank_tiles = 2, .cluster = 8, .launches = 2}}) {
    EXPECT_EQ(launch_error(narrow, call, 127999),
              "lora_linear: workspace: has 127999 bytes, the variant needs 128000");
  }
  for (const LoraVariant& wide :
       {LoraVariant{.rank_tiles = 4, .token_tiles = 4, .cluster = 8, .stages = 4, .launches = 2},
        {.rank_tiles = 4, .token_tiles = 8, .cluster = 8, .stages = 3, .launches = 2}}) {
    call.segments.segment_size = wide.segment_size();
    EXPECT_EQ(launch_error(wide, call, 0),
              "lora_linear: workspace: has 0 bytes, the variant needs 128000");
  }
}

// Only an expand takes a segment in parts.
TEST(LoraLinear, TakesSegmentsOfItsVariantOnly) {
  Call call;
  call.x = device_view(Dtype::bf16, nullptr, {0, 64});  // nothing is launched
  call.y = device_view(Dtype::bf16, nullptr, {0, 48});
  for (const LoraVariant& v :
       {LoraVariant{.cluster = 8, .stages = 2},
        {.cluster = 8, .stages = 2, .launches = 2},
        {.rank_tiles = 4, .token_tiles = 4, .cluster = 8, .stages = 4, .launches = 2},
        {.rank_tiles = 4, .token_tiles = 8, .cluster = 8, .stages = 3, .launches = 2}}) {
    for (const int32_t size : {-8, 0, 8, 12, 32, 64}) {
      call.segments.segment_size = size;
      const std::string error = "lora_linear: segments: has segments of " + std::to_string(size) +
                                " tokens, the kernel needs " + std::to_string(v.segment_size());
      EXPECT_EQ(launch_error(v, call, 0), size == v.segment_size() ? "" : error) << describe(v);
    }
  }
}

TEST(LoraLinear, AnAlignedVariantNeedsAlignedTensors) {
  Call call;
  call.x.strides[0] = 65;
  const LoraVariant variant{.cluster = 8, .stages = 2};
  const std::string error = error_of([&] {
    LoraLayer(desc()).launch_variant(variant, {.x = call.x, .y = call.y}, call.segments, nullptr);
  });
  EXPECT_THAT(error, HasSubstr("variant: needs aligned tensors: rank_tiles=1"));
}

}  // namespace
}  // namespace loratory::gpu
