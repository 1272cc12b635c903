// Other engines' buffers as descriptors: every element of a weight lies where the reference's view
// of the same buffer has it.
#include "gpu/api/peer_layouts.hpp"

#include <gmock/gmock.h>

#include "reference/engines/stacked.hpp"
#include "tests/gpu/host/error_of.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::Tensor;
using testing::HasSubstr;

constexpr int64_t kSlots = 3, kRank = 4, kIn = 5;
const std::vector<int64_t> kWidths{6, 2, 3};
const std::vector<int32_t> kRanks{4, 0, 3};
const std::vector<float> kScalings{1, 2, 0.5F};

/// Row j, column c of slot s, as lora_desc.hpp says.
const void* address(const DeviceView& view, int32_t first_row, int64_t s, int64_t j, int64_t c) {
  const int64_t element =
      s * view.strides[0] + (first_row + j) * view.strides[1] + c * view.strides[2];
  return static_cast<const std::byte*>(view.data) + element * int64_t(size_bytes(view.dtype));
}

DeviceView view_of(Tensor& t) {
  const auto& shape = t.shape();
  return device_view(t.dtype(), t.bytes().data(), {shape[0], shape[1], shape[2]});
}

// [1.26] vLLM: a tensor [L, 1, R, K] and one [L, 1, N_i, R] for each slice.
TEST(PeerLayouts, VllmIsOneTensorASlice) {
  VllmWeights weights{.num_slots = kSlots, .max_rank = kRank, .num_in = kIn, .slices = {}};
  std::vector<Tensor> a, b;
  for (const int64_t width : kWidths) {
    a.emplace_back(Dtype::bf16, reference::Extents{kSlots, 1, kRank, kIn});
    b.emplace_back(Dtype::bf16, reference::Extents{kSlots, 1, width, kRank});
  }
  for (size_t i = 0; i < a.size(); ++i) {
    weights.slices.push_back({.a = a[i].bytes().data(),
                              .b = b[i].bytes().data(),
                              .num_out = kWidths[i],
                              .ranks = kRanks.data(),
                              .scalings = kScalings.data()});
  }
  const LoraLayerDesc desc = vllm_linear(weights);
  ASSERT_EQ(desc.slices.size(), 3U);
  for (size_t i = 0; i < a.size(); ++i) {
    const LoraSliceDesc& slice = desc.slices[i];
    EXPECT_EQ(slice.a_rank_steps, 0);
    EXPECT_EQ(slice.ranks, kRanks.data());
    EXPECT_EQ(slice.scalings, kScalings.data());
    for (int64_t s = 0; s < kSlots; ++s) {
      for (int64_t j = 0; j < kRank; ++j) {
        for (int64_t c = 0; c < kIn; ++c) {
          EXPECT_EQ(address(slice.a, 0, s, j, c), a[i].view().address(s, 0, j, c));
        }
        for (int64_t n = 0; n < kWidths[i]; ++n) {
          EXPECT_EQ(address(slice.b, 0, s, n, j), b[i].view().address(s, 0, n, j));
        }
      }
    }
    EXPECT_EQ(slice.a.shape, (std::array<int64_t, 3>{kSlots, kRank, kIn}));
    EXPECT_EQ(slice.b.shape, (std::array<int64_t, 3>{kSlots, kWidths[i], kRank}));
  }
}

struct Stacked {
  Tensor a{Dtype::f16, {kSlots, 3 * kRank, kIn}};
  Tensor b{Dtype::f16, {kSlots, 12, kRank}};
  StackedDeviceWeights weights{.a = view_of(a),
                               .b = view_of(b),
                               .output_offset = {1, 7, 9, 12},
                               .ranks = kRanks.data(),
                               .scalings = kScalings.data()};
};

// [1.26] SGLang and TokenSpeed: slice i of a slot of rank r has rows [i·r, (i+1)·r), as
// stacked_shrink() and stacked_expand() cut them.
TEST(PeerLayouts, StackedSlicesFollowAtTheTrueRank) {
  Stacked stacked;
  const LoraLayerDesc desc = stacked_linear(stacked.weights);
  ASSERT_EQ(desc.slices.size(), 3U);
  EXPECT_EQ(desc.offset_start, 1);
  const auto& at = stacked.weights.output_offset;
  for (size_t i = 0; i < desc.slices.size(); ++i) {
    const LoraSliceDesc& slice = desc.slices[i];
    EXPECT_EQ(slice.a.shape, (std::array<int64_t, 3>{kSlots, kRank, kIn}));
    EXPECT_EQ(slice.b.shape, (std::array<int64_t, 3>{kSlots, at[i + 1] - at[i], kRank}));
    EXPECT_EQ(slice.ranks, kRanks.data());
    EXPECT_EQ(slice.scalings, kScalings.data());
    for (int64_t s = 0; s < kSlots; ++s) {
      const int64_t r = kRanks[size_t(s)], first = int64_t(i) * r;
      const auto a = stacked.a.view()[s].part(0, first, first + r);
      const auto b = stacked.b.view()[s].part(0, at[i], at[i + 1]);
      for (int64_t j = 0; j < r; ++j) {
        for (int64_t c = 0; c < kIn; ++c) {
          EXPECT_EQ(address(slice.a, int32_t(slice.a_rank_steps * r), s, j, c), a.address(j, c));
        }
        for (int64_t n = 0; n < b.size(0); ++n) {
          EXPECT_EQ(address(slice.b, 0, s, n, j), b.address(n, j));
        }
      }
    }
  }
}

std::string stacked_error(const StackedDeviceWeights& weights) {
  return error_of([&] { stacked_linear(weights); });
}

TEST(PeerLayouts, StackedNamesWhatDoesNotFit) {
  Stacked stacked;
  stacked.weights.output_offset = {0, 7, 13};
  EXPECT_THAT(stacked_error(stacked.weights),
              HasSubstr("output_offset: does not divide the rows of b"));
  stacked.weights.output_offset = {0, 7, 6};
  EXPECT_THAT(stacked_error(stacked.weights),
              HasSubstr("output_offset: does not divide the rows of b"));
  stacked.weights.output_offset = {0};
  EXPECT_THAT(stacked_error(stacked.weights),
              HasSubstr("output_offset: does not divide the rows of b"));
  stacked.weights.output_offset = {0, 6, 12};
  EXPECT_THAT(stacked_error(stacked.weights), HasSubstr("a: has 12 rows, slices times rank are 8"));
  stacked.weights.a.num_axes = 2;
  EXPECT_THAT(stacked_error(stacked.weights), HasSubstr("a, b: need three axes"));
}

}  // namespace
}  // namespace loratory::gpu
