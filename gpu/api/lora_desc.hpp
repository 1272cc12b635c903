#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "gpu/plan/lora_op.hpp"
#include "gpu/runtime/device_view.hpp"
#include "reference/numerics/numeric_mode.hpp"
#include "reference/quantized/quantized_linear.hpp"

// What a layer is, for the LoRA operations on the GPU: the descriptors of reference/lora/linear.hpp
// with tensors in device memory. Letters: T tokens, K in-features, L slots, S slices (at most
// kMaxSlices), R_i rows of a slot's buffer in slice i, N_i columns of slice i.
//
// Dtypes   A and B f32, bf16 or f16, one dtype per layer; f32 weights take the generic path. Or all
//          of them 8-bit (f8_e4m3fn, f8_e5m2, i8), each slice's A and B of its own format, with
//          factors: see 8-bit below. x, h and y f32, bf16 or f16, each its own; beside 8-bit
//          weights x and h may be 8-bit too.
// Strides  not negative, in elements: of the outermost axis any, of others below 2^30, of factors
// below
//          2^31. The innermost axis of every tensor has stride 1.
// Lifetime The memory behind the pointers may change between launches (an adapter is copied into a
//          slot). The pointers may not: a captured graph keeps them.
// 8-bit    A number is bits · factor. Which shapes of factors go together, what is rounded where
//          and what is not read: reference/quantized/quantized_linear.hpp, whose functions these
//          are. Factors are fp32, their innermost stride is 1. Not for layers of experts.

namespace loratory::gpu {

/// One slice of a packed layer, for all slots.
struct LoraSliceDesc {
  DeviceView a{};                   ///< [L, R_i, K]; ignored by an expand
  DeviceView b{};                   ///< [L, N_i, R_i]; ignored by a shrink
  const int32_t* ranks = nullptr;   ///< [L] on the device, each in [0, R_i]; 0: no such slice
  const float* scalings = nullptr;  ///< [L] on the device, finite; ignored by a shrink
  /// Row j of slot s lies a_rank_steps · ranks[s] rows behind a[s, j]: 0, or i where slice i of a
  /// slot follows the others at the distance of the true rank (peer_layouts.hpp).
  int32_t a_rank_steps = 0;
  /// Of an expert layer: how far the weights of an expert lie behind those of the expert before it,
  /// in elements; 0: all experts of a slot share them.
  int64_t a_expert_stride = 0, b_expert_stride = 0;
  DeviceView a_scale{};  ///< of 8-bit A: [L], [L, R_i] or [L, ceil(R_i / n), ceil(K / k)]
  DeviceView b_scale{};  ///< of 8-bit B: [L], [L, N_i] or [L, ceil(N_i / n), ceil(R_i / k)]
};

/// Makes a layer one of experts: each token has a row for each of its k experts, and each slot
/// weights for each of E experts. gpu/moe/expert_lora.hpp says what is computed.
struct LoraExperts {
  int32_t num_experts = 1;  ///< E: ranks and scalings are [L, E]; segments have slot · E + expert
  int32_t rows_per_x = 1;  ///< k: row r of h and y is made from row r / k of x; 1: each has its own
  /// [T·k] on the device: what the delta of each row is multiplied by; null: 1. Settled before
  /// the launch, as segments are. A shrink ignores it.
  const float* router_weights = nullptr;
};

/// A layer and the operation on it. The halves of a linear are the same descriptor with another
/// `op`; each operation ignores what only the others need.
struct LoraLayerDesc {
  LoraOp op = LoraOp::linear;
  std::vector<LoraSliceDesc> slices;  ///< S
  int64_t offset_start = 0;           ///< first column of slice 0 in y
  bool add_inputs = true;             ///< false: y = delta, and the old y is not read
  reference::NumericMode mode{};
  LoraExperts experts{};
  /// Linear: device memory for h between two launches, as much as workspace_bytes() says for the
  /// largest step. All layers of a stream may share it. Without it, or with too little, a step
  /// takes one launch: the same bits, but up to four times as slow.
  /// 8-bit weights need it in any case, of quantized_workspace_bytes() if x is 8-bit.
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  /// Device memory where the CTAs of some shrinks meet, of split_sums_bytes(), 0 before the
  /// first launch. All layers of a stream may share it. Without it the others are launched. With
  /// it the rules take the layer to be launched behind a product of its x.
  void* split_sums = nullptr;
  size_t split_sums_bytes = 0;
  reference::BlockSize a_block{}, b_block{};  ///< of the factors of 8-bit weights
};

/// "op=lora_linear slices=[{a=bf16[4, 16, 64] b=...}] ...": every field as name=value, scales
/// and blocks where there are any.
std::string describe(const LoraLayerDesc& desc);
std::ostream& operator<<(std::ostream& out, const LoraLayerDesc& desc);

/// S · T · R fp32 numbers, with R padded to a multiple of 4.
size_t workspace_bytes(int64_t num_tokens, int64_t num_slices, int64_t max_rank);
/// The same; then h in 8 bits and its factors, one for each `block_k` ranks (0: for each row).
size_t quantized_workspace_bytes(int64_t num_tokens, int64_t num_slices, int64_t max_rank,
                                 int64_t block_k);

/// 516 bytes for each token and tile of 16 ranks. A slice has whole tiles, and all slices together
/// count as a multiple of four. The rules choose shrinks that meet in memory for up to
/// kMostTokensThroughMemory.
size_t split_sums_bytes(int64_t num_tokens, int64_t num_slices, int64_t max_rank);

}  // namespace loratory::gpu
