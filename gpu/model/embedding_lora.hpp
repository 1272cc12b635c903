#pragma once

#include <cstdint>

#include "gpu/plan/launch_order.hpp"
#include "gpu/runtime/device_view.hpp"

struct CUstream_st;

// What LoRA on embed_tokens needs besides an expand of gpu/api/lora_layer.hpp: its shrink, which
// computes nothing. LoRA on lm_head needs nothing here: it is a lora_linear whose rows are the
// sampled ones, with segments of their slots instead of the tokens'.

namespace loratory::gpu {

struct EmbeddingShrinkArgs {
  DeviceView a;                    ///< [L, R, V]; f32, f16, bf16 or f8_e4m3fn
  const float* factors = nullptr;  ///< [L] on the device, of f8_e4m3fn alone
  const int32_t* ranks = nullptr;  ///< [L] on the device, each in [0, R]
  const int32_t* slots = nullptr;  ///< [T] on the device, each in [-1, L)
  const int32_t* ids = nullptr;    ///< [T] on the device: those that embed() gives
  DeviceView h;                    ///< [1, T, >= R] f32: what an expand of the slots reads
};

/// h[0, t, j] = A[s(t), j, id of t],  j < r(s(t)): a column of A, exact. Numbers of f8_e4m3fn are
/// multiplied by the slot's factor in fp32.
///
/// Covered   tokens with a slot of a rank; nothing else of h is written, and of A only these
///           columns are read. An id outside [0, V) reads nothing and leaves zeros: no delta. Slots
///           outside [-1, L) count as none.
/// Errors    InputError: dtypes, shapes, strides, null. std::runtime_error: CUDA's name and text.
/// Repeats   bitwise; a row depends on its id and its slot alone.
/// Cost      one sector of 32 bytes for each rank of each token.
/// Source    statements [1.28], [1.29]; PEFT lora_embedding_A.
void shrink_embedding(const EmbeddingShrinkArgs& args, CUstream_st* stream,
                      LaunchOrder order = LaunchOrder::after_previous);

}  // namespace loratory::gpu
