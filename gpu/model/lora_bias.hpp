#pragma once

#include <cstdint>
#include <vector>

#include "gpu/plan/launch_order.hpp"
#include "gpu/runtime/device_view.hpp"

struct CUstream_st;

namespace loratory::gpu {

/// One slice of a packed layer, for all slots.
struct LoraBiasSlice {
  DeviceView bias{};               ///< [L, N_i] of y's dtype; null: this slice has no bias
  const int32_t* ranks = nullptr;  ///< [L] on the device; 0: no such slice
};

struct LoraBiasArgs {
  std::vector<LoraBiasSlice> slices;  ///< S, at most kMaxSlices; the shapes say N_i
  const int32_t* slots = nullptr;     ///< [T] on the device, each in [-1, L)
  int64_t offset_start = 0;           ///< first column of slice 0
  DeviceView y;                       ///< [T, >= offset_start + sum N_i]
};

/// y[t, o_i + n] = round_y(y[t, o_i + n] + bias_i[s(t), n]) where the slot has a rank in slice i:
/// what vLLM's former lora_bias adds before delta. Launch the layer's linear behind it.
///
/// Covered   as LoraLayer. Nothing else is read or written; slots outside [-1, L) count as none.
/// Rounding  one fp32 sum, once to y's dtype: the bits of the reference.
/// Errors    InputError: dtypes, shapes, strides, null. std::runtime_error: CUDA's name and text.
/// Source    statement [1.9].
void add_lora_bias(const LoraBiasArgs& args, CUstream_st* stream,
                   LaunchOrder order = LaunchOrder::after_previous);

}  // namespace loratory::gpu
