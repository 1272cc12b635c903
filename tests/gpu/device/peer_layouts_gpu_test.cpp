// Another engine's buffers read where they lie: its operation by the reference, ours by the GPU.
#include <gtest/gtest.h>

#include <limits>

#include "gpu/api/lora_layer.hpp"
#include "gpu/api/peer_layouts.hpp"
#include "gpu/layout/device_segments.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "guarded_tensor.hpp"
#include "reference/engines/chunked_sgmv.hpp"
#include "suite.hpp"
#include "upload.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::NumericMode;
using reference::RequestTokens;
using reference::Tensor;

class PeerLayoutsOnGpu : public OnGpu {};

void fill(Tensor& t, uint64_t stream) {
  for (int64_t i = 0; i < num_numbers(t); ++i) {
    set_number(t, i, double(reference::random_bits(7, stream, uint64_t(i)) % 1001) / 500 - 1);
  }
}

/// Three slices as SGLang stacks them: slot 0 is the base model's, the ranks differ, and what lies
/// beyond the last slice of a slot is NaN.
struct Qkv {
  static constexpr int64_t kSlots = 4, kRank = 8, kIn = 96;
  std::vector<int32_t> ranks{0, 8, 3, 5};
  std::vector<float> scalings{0, 0.7F, 1.3F, 2};
  std::vector<int64_t> output_offset{0, 20, 25, 32};
  std::vector<RequestTokens> requests{{2, 9}, {0, 3}, {1, 1}, {3, 17}, {2, 4}};
  Tensor a{Dtype::bf16, {kSlots, 3 * kRank, kIn}};
  Tensor b{Dtype::bf16, {kSlots, 32, kRank}};
  Tensor x{Dtype::bf16, {34, kIn}};
  Tensor y{Dtype::bf16, {34, 32}};

  Qkv() {
    fill(a, 1), fill(b, 2), fill(x, 3), fill(y, 4);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (int64_t s = 0; s < kSlots; ++s) {
      const int64_t r = ranks[size_t(s)];
      for (int64_t j = 3 * r; j < 3 * kRank; ++j) {
        for (int64_t c = 0; c < kIn; ++c) a.set(nan, s, j, c);
      }
      for (int64_t j = r; j < kRank; ++j) {
        for (int64_t n = 0; n < 32; ++n) b.set(nan, s, n, j);
      }
    }
  }
};

Tensor by_reference(const Qkv& qkv, const NumericMode& mode) {
  reference::ChunkedLayout layout;
  build(qkv.requests, 16, qkv.ranks, qkv.scalings, layout);
  Tensor y = qkv.y;
  reference::ChunkedSgmv(layout, mode)
      .run_qkv_lora(qkv.x.view(), {qkv.a.view(), qkv.b.view(), qkv.output_offset}, y.view());
  return y;
}

Tensor launched(const LoraLayerDesc& desc, const Qkv& qkv, const GuardedTensor& x,
                const GuardedTensor& y) {
  const LoraLayer layer(desc);
  const std::vector<int32_t> slots = reference::token_slots(qkv.requests);
  DeviceSegments segments(int64_t(slots.size()), Qkv::kSlots,
                          layer.variant_for({.x = x.view(), .y = y.view()}).segment_size());
  segments.upload(reference::make_batch_layout(slots, Qkv::kSlots), nullptr);
  layer.launch({.x = x.view(), .y = y.view()}, segments.view(), nullptr);
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  return y.read();
}

Tensor by_gpu(const Qkv& qkv, const NumericMode& mode) {
  const GuardedTensor a(qkv.a), b(qkv.b), x(qkv.x), y(qkv.y);
  const DeviceBuffer ranks = upload(qkv.ranks), scalings = upload(qkv.scalings);
  LoraLayerDesc desc = stacked_linear({.a = a.view(),
                                       .b = b.view(),
                                       .output_offset = qkv.output_offset,
                                       .ranks = reinterpret_cast<const int32_t*>(ranks.get()),
                                       .scalings = reinterpret_cast<const float*>(scalings.get())});
  desc.mode = mode;
  return launched(desc, qkv, x, y);
}

// [1.26], [2.17]-[2.19]: slices at the distance of the true rank. SGLang's roundings with the
// scaling in B, which is the generic path: bit for bit.
TEST_F(PeerLayoutsOnGpu, StackedSlicesAreThoseOfSglang) {
  const Qkv qkv;
  NumericMode mode = reference::kSglangMode;
  mode.scale = reference::ScaleMode::folded_b;
  EXPECT_TRUE(same_bits(by_gpu(qkv, mode), by_reference(qkv, mode)));
}

/// The same slices, each in a tensor of its own.
Tensor by_gpu_unstacked(const Qkv& qkv, const NumericMode& mode) {
  const GuardedTensor x(qkv.x), y(qkv.y);
  const DeviceBuffer ranks = upload(qkv.ranks), scalings = upload(qkv.scalings);
  std::vector<GuardedTensor> weights;
  LoraLayerDesc desc{.slices = {}, .mode = mode};
  for (size_t i = 0; i < 3; ++i) {
    const int64_t first = qkv.output_offset[i], end = qkv.output_offset[i + 1];
    Tensor a(Dtype::bf16, {Qkv::kSlots, Qkv::kRank, Qkv::kIn});
    Tensor b(Dtype::bf16, {Qkv::kSlots, end - first, Qkv::kRank});
    for (int64_t s = 0; s < Qkv::kSlots; ++s) {
      const int64_t r = qkv.ranks[size_t(s)];
      for (int64_t j = 0; j < r; ++j) {
        for (int64_t c = 0; c < Qkv::kIn; ++c) a.set(qkv.a.get(s, int64_t(i) * r + j, c), s, j, c);
        for (int64_t n = first; n < end; ++n) b.set(qkv.b.get(s, n, j), s, n - first, j);
      }
    }
    weights.emplace_back(a), weights.emplace_back(b);
    desc.slices.push_back({.a = weights[2 * i].view(),
                           .b = weights[2 * i + 1].view(),
                           .ranks = reinterpret_cast<const int32_t*>(ranks.get()),
                           .scalings = reinterpret_cast<const float*>(scalings.get())});
  }
  return launched(desc, qkv, x, y);
}

// [1.26]: and on the tensor cores those of slices in tensors of their own.
TEST_F(PeerLayoutsOnGpu, StackedOrNotGivesTheSameBits) {
  const Qkv qkv;
  for (const NumericMode& mode : {reference::kDefaultMode, reference::kSglangMode}) {
    EXPECT_TRUE(same_bits(by_gpu(qkv, mode), by_gpu_unstacked(qkv, mode)));
  }
}

}  // namespace
}  // namespace loratory::gpu
