#pragma once

#include <cstdint>

#include "gpu/engine/paced_copy.hpp"
#include "gpu/engine/slot_layout.hpp"
#include "reference/adapter/adapter.hpp"
#include "reference/model/model_config.hpp"
#include "reference/numerics/dtype.hpp"
#include "scheduler_sim/cost/lora_shapes.hpp"
#include "scheduler_sim/scheduler/scheduler_config.hpp"

namespace loratory::gpu {

/// Most likely tokens whose log-probabilities a request may ask for; vLLM's --max-logprobs.
inline constexpr int32_t kMostLogprobs = 20;

/// What an engine on a GPU is built for, besides its model and its SchedulerConfig. Nothing of it
/// changes afterwards.
struct EngineOptions {
  /// Of weights, activations and KV cache: bf16 or f16; f32 for tests, by slow kernels.
  reference::Dtype dtype = reference::Dtype::bf16;
  bool lora = true;  ///< false: no slots, and no adapter can be loaded
  int64_t max_lora_rank = 64;
  /// Of A and B in slots and in host memory. fp8: not for models with experts in `modules`.
  sim::LoraDtype lora_dtype = sim::LoraDtype::of_model;
  /// What slots have room for.
  reference::EnabledModules modules{};
  /// Decode steps of up to so many rows are replayed from CUDA graphs; 0 = none are.
  int32_t max_graph_rows = 256;
  /// Host memory for so many adapters is page-locked at once; more when it is needed.
  int64_t num_host_images = 0;
  /// Writes NaN over KV blocks that a step takes into use, as PagedKv does. For tests: one kernel
  /// more in a step.
  bool poison_blocks = false;
  /// Of a copy into a slot beside steps, so many bytes at a time. For tests.
  int64_t copy_part_bytes = PacedCopy::kPartBytes;
};

/// Does this layer have experts instead of one MLP?
bool has_experts(const reference::ModelConfig& model, int64_t layer);

/// Errors   InputError in one line: a model that reference/ cannot compute, shared experts, more
///          experts than the router takes, 16-bit experts whose sizes are no multiples of 8, an odd
///          or too large head size, a dtype that the kernels lack, a vocabulary that the sampler
///          does not take.
void require_gpu_model(const reference::ModelConfig& model, reference::Dtype dtype);

/// The slots of such an engine. Errors  InputError as SlotLayout.
SlotLayout slot_layout(const reference::ModelConfig& model, const EngineOptions& options);

/// `config` with max_model_len lowered to what the model's positions, its sliding window and the
/// pool of blocks hold. A request beyond it is refused when it is submitted.
sim::SchedulerConfig bounded_by_model(sim::SchedulerConfig config,
                                      const reference::ModelConfig& model);

/// Blocks of the longest request, which is the width of a block table.
int32_t max_blocks_per_row(const sim::SchedulerConfig& bounded);

}  // namespace loratory::gpu
