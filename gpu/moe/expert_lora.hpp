#pragma once

#include "gpu/api/lora_layer.hpp"
#include "gpu/moe/group_views.hpp"

// LoRA on the linear layers of experts, on the GPU: reference/moe/expert_lora.hpp says what is
// computed, and this page how to ask for it. Letters as there: T tokens, k experts of a token, E
// experts here, L slots, S slices, R ranks of a slot's buffer. A row t·k + i is token t at its i-th
// expert.
//
// linear   y[row, o_i + n] = base + g · (scaling · sum_j h_j · B_i[s, e, n, j]),
//          h_j = sum_c A_i[s, e, j, c] · x[row / k, c], or x[row, c] where rows differ already;
//          g the router weight, if there is one.
// shrink, expand   its halves, with h [S, T·k, R].
//
// It is lora_linear on rows, for slots that are pairs of slot and expert: the same kernels, order
// of sums, bounds and modes (gpu/api/lora_layer.hpp), and so the same bits as a dense layer of
// these weights. gate and up are slices of one launch, which reads x once for each 16 to 128 ranks
// of both.
//
// Layouts  A weight [L, E, R, K] has any slot and expert stride, 0 where experts share a weight.
//          Adapters of a whole 3-D tensor [E, 2·I, R] (gate and up share A) are one slice of 2·I
//          columns, whose order, halves or interleaved as gpt-oss has it, is that of y.
// Router weight   Only where the mode says so (vLLM's add_lora_w2): MoeLayer of the reference adds
//          deltas unweighted and weighs z. On the tensor_core path h meets it, in fp32; the bound
//          is that of expert_lora_oracle(). A mode whose h has 16 bits takes the generic path then.
// Repeats  Bitwise. A row depends on its x, its slot's weights at its expert and the layer alone.

namespace loratory::gpu {

/// Sizes of one projection of all experts.
struct ExpertSliceShape {
  int64_t num_slots = 1, num_experts = 1, max_rank = 1;
  int64_t num_in = 1, num_out = 1;
};

/// Which weights all experts of a slot share: their tensor is [L, R, K] or [L, N, R] then.
struct SharedWeights {
  bool a = false, b = false;
};

/// A slice whose weights lie row-major without gaps: [L, E, R, K] and [L, E, N, R].
LoraSliceDesc expert_slice(reference::Dtype dtype, void* a, void* b, const ExpertSliceShape& shape,
                           const int32_t* ranks, const float* scalings, SharedWeights shared = {});

/// An expert layer and the operation on it: checked once, launched every step.
class ExpertLora {
 public:
  /// Errors   InputError naming the argument, as LoraLayer.
  explicit ExpertLora(LoraLayerDesc desc) : layer_(std::move(desc)) {}

  /// For the rows of `groups`, which are those of a builder with L slots and E experts.
  /// Never allocates, never waits, may be captured; grid and arguments follow from T·k alone.
  /// Errors   as LoraLayer::launch().
  void launch(const LoraTensors& tensors, const GroupViews& groups, CUstream_st* stream,
              LaunchOrder order = LaunchOrder::after_previous) const;

  const LoraLayer& layer() const { return layer_; }

 private:
  LoraLayer layer_;
};

}  // namespace loratory::gpu
