#pragma once

#include <vector>

#include "gpu/api/lora_desc.hpp"

// The weights of other engines, read where they lie: their buffers as descriptors of ours. Nothing
// is copied. Letters as in lora_desc.hpp; R is the same for all slices. Roundings are
// NumericMode's: set `mode` of the result to the engine's preset.
//
// shrink and expand keep h as [S, T, R], which is vLLM's buffer. SGLang and TokenSpeed put slice
// i of h at column i·r of [T, S·R], which no strides describe: launch a linear for them.

namespace loratory::gpu {

/// vLLM: lora_a_stacked and lora_b_stacked, a tensor for each slice.
struct VllmWeights {
  struct Slice {
    void* a = nullptr;                ///< [L, 1, R, K], no gaps
    void* b = nullptr;                ///< [L, 1, N_i, R], no gaps
    int64_t num_out = 0;              ///< N_i
    const int32_t* ranks = nullptr;   ///< [L] on the device
    const float* scalings = nullptr;  ///< [L] on the device
  };

  reference::Dtype dtype = reference::Dtype::bf16;
  int64_t num_slots = 0, max_rank = 0, num_in = 0;  ///< L, R, K
  std::vector<Slice> slices;
};

/// vLLM has no table of ranks: it multiplies all R rows, zeros behind the adapter's. Ranks of R
/// give its sums, true ranks the same without those zeros, 0 for a slot or slice that is not there.
/// It has multiplied B by the scaling at load: scalings of 1 and ScaleMode::accumulator then, not
/// folded_b, which would be for a B as trained.
/// Source   statements [1.13], [1.26]; vLLM, lora/layers.
LoraLayerDesc vllm_linear(const VllmWeights& weights);

/// SGLang and TokenSpeed: the slices of a layer in one tensor each. A slot has one rank r for all
/// slices; slice i has rows [i·r, (i+1)·r) of A, at the distance of the true rank and not of R, so
/// that its place differs from slot to slot: LoraSliceDesc::a_rank_steps.
struct StackedDeviceWeights {
  DeviceView a;                        ///< [L, S·R, K]
  DeviceView b;                        ///< [L, >= output_offset.back(), R]
  std::vector<int64_t> output_offset;  ///< [S + 1]: slice i is b's rows and y's columns from here
  const int32_t* ranks = nullptr;      ///< [L] on the device
  const float* scalings = nullptr;     ///< [L] on the device
};

/// Errors   InputError: fewer than one slice, offsets that do not ascend within b, an A without
///          S times the rank of B.
/// Source   statement [1.26]; StackedWeights of reference/engines/stacked.hpp; SGLang,
///          lora/mem_pool.py; TokenSpeed, PR #83.
LoraLayerDesc stacked_linear(const StackedDeviceWeights& weights);

}  // namespace loratory::gpu
