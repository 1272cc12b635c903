#pragma once

#include <cstdint>

#include "scheduler_sim/cost/memory_law.hpp"

namespace loratory::sim {

/// Memory that vLLM's weights and `max_loras` slots take on one GPU, as the driver sees it: every
/// tensor in the order in which vLLM creates it, through PyTorch's allocator. Slots have room for
/// every module that vLLM adapts, whatever the adapters target (vLLM 0.8.5, lora/layers.py:
/// create_lora_weights; 0.33.0, lora/layers/).
int64_t vllm_static_bytes(const ModelSpec& model, const MemoryOptions& options, int64_t max_loras);

/// What profiling takes beside them (vLLM 0.8.5, v1/worker/gpu_worker.py:
/// determine_available_memory): the larger of the forward pass of max_num_batched_tokens and the
/// sampler of max_num_seqs rows, and 1.55 GiB for CUDA's context, workspaces and rotary tables,
/// fitted to 65 measured starts of 0.8.5.
int64_t vllm_reserve_bytes(const ModelSpec& model, const MemoryOptions& options);

/// Why vLLM does not start with so many slots though memory would do; empty if it does.
std::string vllm_slot_problem(const ModelSpec& model, const MemoryOptions& options,
                              int64_t max_loras);

}  // namespace loratory::sim
