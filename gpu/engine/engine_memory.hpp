#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/attention/paged_attention.hpp"
#include "gpu/engine/engine_options.hpp"
#include "gpu/engine/slot_layout.hpp"
#include "gpu/engine/weight_layout.hpp"
#include "scheduler_sim/cost/memory_law.hpp"
#include "scheduler_sim/scheduler/scheduler_config.hpp"

namespace loratory::gpu {

/// The buffers that a pass goes through; bytes from the start of the workspace. T tokens and S
/// sampled rows at most.
struct PassLayout {
  int64_t num_tokens = 0, num_sampled = 0;
  int64_t x = 0;              ///< [T, hidden] the residual stream
  int64_t normed = 0;         ///< [T, hidden]
  int64_t qkv = 0;            ///< [T, q + 2 kv]
  int64_t attended = 0;       ///< [T, q]
  int64_t delta = 0;          ///< [T, hidden] what a layer adds to x
  int64_t gate_up = 0;        ///< [T, 2 intermediate], or [T k, 2 expert_intermediate]
  int64_t activation = 0;     ///< half of that
  int64_t expert_out = 0;     ///< [T k, hidden] what the experts return
  int64_t router_logits = 0;  ///< f32 [T, experts]
  int64_t experts = 0, router_weights = 0;   ///< int32, f32 [T k]
  int64_t sampled = 0;                       ///< [S, hidden]
  int64_t logits = 0;                        ///< f32 [S, vocab]
  int64_t ids = 0;                           ///< int32 [T]
  int64_t tokens = 0;                        ///< int32 [S] sampled
  int64_t logprobs = 0;                      ///< double [S]
  int64_t top_tokens = 0, top_logprobs = 0;  ///< int32, double [S, kMostLogprobs]
  int64_t lora_h = 0;                        ///< f32, of the largest layer
  int64_t lora_h_bytes = 0;
  int64_t split_sums_bytes = 0;
  int64_t split_sums = 0;  ///< of LoraLayerDesc
  int64_t step = 0;        ///< StepArrays of the largest step
  int64_t step_bytes = 0;
  int64_t rope_cos = 0, rope_sin = 0;  ///< f32 [positions, head_dim / 2]
  int64_t attention = 0;               ///< what AttentionPlan asks for
  int64_t bytes = 0;

  /// tokens to top_logprobs, which lie side by side: what a step gives the host.
  int64_t results_bytes() const { return top_logprobs + num_sampled * kMostLogprobs * 8 - tokens; }
};

/// Attention of all layers. `bounded` is bounded_by_model().
AttentionPlan plan_attention(const reference::ModelConfig& model,
                             const sim::SchedulerConfig& bounded, reference::Dtype dtype);

PassLayout lay_out_pass(const reference::ModelConfig& model, const sim::SchedulerConfig& bounded,
                        const EngineOptions& options);

/// Bytes of the keys, or the values, of a layer: [num_blocks, kv heads, block_size, head_dim].
int64_t kv_tensor_bytes(const reference::ModelConfig& model, const sim::SchedulerConfig& config,
                        reference::Dtype dtype);

/// One line of the memory of an engine: what the law of docs/cost_model.md says, and what this
/// engine allocates.
struct MemoryLine {
  std::string what;
  int64_t law_bytes = 0;
  int64_t planned_bytes = 0;
};

/// The memory of an engine, planned before the first byte is allocated.
struct EngineMemory {
  std::vector<MemoryLine> lines;  ///< weights, slots, KV cache, the rest
  int64_t usable_bytes = 0;       ///< of the GPU
  int64_t num_blocks = 0;         ///< of KV, the null block included; 0: it does not fit
  std::string problem;            ///< one line; empty = it fits
};

/// The blocks of `config`, or as many as fit if that is 0. `product_bytes` is the workspace of
/// Products. `free_bytes` is what the GPU has left for this program, of which the engine may use
/// the fraction `utilization`. Errors   InputError as require_gpu_model(); a block size that is no
/// power of two, more slots of experts than a step can count.
EngineMemory plan_engine_memory(const reference::ModelConfig& model,
                                const sim::SchedulerConfig& config, const EngineOptions& options,
                                int64_t product_bytes, int64_t free_bytes, double utilization);

/// A table: what, the law, planned, and allocated where it is known (`allocated` may be empty).
std::string memory_table(const EngineMemory& memory, const std::vector<int64_t>& allocated);

}  // namespace loratory::gpu
