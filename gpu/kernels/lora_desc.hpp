#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/kernels/lora_stage.hpp"
#include "gpu/runtime/device_view.hpp"
#include "reference/numerics/numeric_mode.hpp"

// What a layer is, for the LoRA operations on the GPU; the descriptors of reference/lora/linear.hpp
// with tensors in device memory. Letters: T tokens, K in-features, L slots, S slices (at most
// kMaxSlices), R_i rows of a slot's buffer in slice i, N_i columns of slice i.
//
// Dtypes   A and B bf16 or f16, one dtype in a layer. x, h and y f32, bf16 or f16, each its own.
// Strides  any, 64-bit, not negative; the innermost axis of every tensor has stride 1.
// Lifetime what the pointers show may change between launches (an adapter is copied into a slot),
//          the pointers may not: a captured graph keeps them.

namespace loratory::gpu {

/// One slice of a packed layer, for all slots.
struct LoraSliceDesc {
  DeviceView a;                     ///< [L, R_i, K]
  DeviceView b;                     ///< [L, N_i, R_i]
  const int32_t* ranks = nullptr;   ///< [L] on the device, each in [0, R_i]; 0: no such slice
  const float* scalings = nullptr;  ///< [L] on the device, finite
  /// Row j of slot s lies a_rank_steps · ranks[s] rows behind a[s, j]: 0, or i where slice i of a
  /// slot follows the others at the distance of the true rank (peer_layouts.hpp).
  int32_t a_rank_steps = 0;
};

struct LoraLinearDesc {
  std::vector<LoraSliceDesc> slices;  ///< S
  int64_t offset_start = 0;           ///< first column of slice 0 in y
  bool add_inputs = true;             ///< false: y = delta, the old y is not read
  reference::NumericMode mode{};
  /// Device memory for h, where a step takes two launches: what workspace_bytes() says for the
  /// largest one. All layers of a stream may share it. Without it, or with too little, such a step
  /// takes one launch: the same bits, but up to four times as long.
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
};

/// S · T · R fp32 numbers, R padded to a multiple of 4.
size_t workspace_bytes(int64_t num_tokens, int64_t num_slices, int64_t max_rank);

struct LoraShrinkSliceDesc {
  DeviceView a;                    ///< [L, R_i, K]
  const int32_t* ranks = nullptr;  ///< [L] on the device, each in [0, R_i]
};

struct LoraShrinkDesc {
  std::vector<LoraShrinkSliceDesc> slices;  ///< S
};

struct LoraExpandSliceDesc {
  DeviceView b;                     ///< [L, N_i, R_i]
  const int32_t* ranks = nullptr;   ///< [L] on the device, each in [0, R_i]
  const float* scalings = nullptr;  ///< [L] on the device, finite
};

struct LoraExpandDesc {
  std::vector<LoraExpandSliceDesc> slices;  ///< S
  int64_t offset_start = 0;                 ///< first column of slice 0 in y
  bool add_inputs = true;                   ///< false: y = delta, the old y is not read
  reference::NumericMode mode{};
};

/// When a launch may start.
enum class LaunchOrder : uint8_t {
  after_previous,  ///< as any kernel in a stream
  /// While the kernel before still runs (programmatic dependent launch): weights are fetched ahead,
  /// x, h and y only after it has ended. Neither that kernel nor those which it may overlap in turn
  /// may write A, B, ranks, scalings or segments: these kernels let the next one start when they
  /// do. After such a write the first launch is after_previous.
  overlaps_previous,
};

}  // namespace loratory::gpu
