#pragma once

#include <cstdint>
#include <string>

#include "scheduler_sim/cost/gpu_spec.hpp"
#include "scheduler_sim/cost/lora_shapes.hpp"
#include "scheduler_sim/cost/memory_split.hpp"
#include "scheduler_sim/cost/model_spec.hpp"

namespace loratory::sim {

/// Whose memory: `plain` is a formula of few terms, the others do what an engine's source does.
enum class MemoryLaw : uint8_t { plain, vllm_08, vllm, sglang };

/// What the engine is told about memory. Every figure of the law is per GPU.
struct MemoryOptions {
  MemoryLaw law = MemoryLaw::plain;
  int tp = 1;
  double gpu_memory_utilization = 0.9;
  int64_t reserve_bytes = -1;  ///< activations, graphs, runtime; -1 = default_reserve_bytes
  int64_t block_size = 16;     ///< tokens per KV block
  int64_t max_num_seqs = 256;
  int64_t max_num_batched_tokens = 2048;
  int64_t max_model_len = 0;  ///< one request of this length must fit; 0 = no such demand
  int64_t max_lora_rank = 16;
  LoraTargets targets;
  LoraDtype lora_dtype = LoraDtype::of_model;  ///< of slots and of host copies
  /// Kept per slot beside its matrices. vLLM up to 0.10 keeps room for extra vocabulary: 6 MiB on
  /// Llama-3.1-8B (measured), 0 on models whose embeddings it does not adapt.
  int64_t slot_overhead_bytes = 0;
  int64_t host_memory_bytes = 0;   ///< for adapters; 0 = no limit
  bool host_copy_per_gpu = false;  ///< every GPU's process keeps its own host copies
  KvPricing kv_pricing;            ///< of layers with a window
};

/// A split and, if it does not fit, one sentence that says what is short and by how much.
struct MemoryPlan {
  MemorySplit split;    ///< kv_blocks = 0 if it does not fit
  std::string problem;  ///< empty = it fits
  bool fits() const { return problem.empty(); }
};

/// Bytes that one slot takes on one GPU: max_lora_rank * (parameters per rank) * bytes of
/// lora_dtype + overhead. Every slot is as large as the largest allowed adapter, whatever it holds.
int64_t slot_bytes(const ModelSpec& model, const MemoryOptions& options);

/// By the law of `options`. Plain: what vLLM's start-up profiling takes, fitted to three measured
/// servers (docs/cost_model.md):
/// 0.75 GiB + max_num_batched_tokens * 3 * intermediate * experts per token / tp * dtype (the
/// widest layer's activations) + 14 bytes of logits (bf16, fp32, sort indices) for max_num_seqs *
/// vocabulary. SGLang: what is gone before it measures the card (srt/mem_cache/
/// kv_cache_configurator.py, _profile_available_bytes), times its fraction. vLLM: vllm_memory.hpp.
int64_t default_reserve_bytes(const ModelSpec& model, const MemoryOptions& options);

/// usable = card * gpu_memory_utilization = weights + max_loras slots + KV blocks + reserve, and
/// host = max_cpu_loras adapters of max_lora_rank (one whole copy each, or one for every GPU). By
/// vLLM's laws the slots include what they leave unused of the allocator's segments.
/// A configuration that does not fit is a plan with a problem, never an exception. Throws
/// InputError only for a tp that the model's heads do not divide into. O(1).
MemoryPlan plan_memory(const ModelSpec& model, const GpuSpec& gpu, const MemoryOptions& options,
                       int64_t max_loras, int64_t max_cpu_loras);

}  // namespace loratory::sim
