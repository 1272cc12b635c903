#include "gpu/engine/engine_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "gpu/api/lora_desc.hpp"
#include "gpu/engine/arena.hpp"
#include "gpu/engine/decode_graphs.hpp"
#include "gpu/engine/step_batch.hpp"
#include "gpu/plan/lora_variant.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/units.hpp"
#include "scheduler_sim/cost/gpu_spec.hpp"

namespace loratory::gpu {

using reference::ModelConfig;
using sim::SchedulerConfig;

namespace {

/// CUDA's context, modules, cuBLASLt and captured graphs: not ours to count.
constexpr int64_t kRuntimeBytes = kGiB / 4 * 3;
constexpr int64_t kMostSlices = 3;    // of a packed layer: q, k, v
constexpr int64_t kExpertSlices = 2;  // gate, up

/// What DeviceSegmentBuilder counts on every GPU that has the engine's kernels.
constexpr int64_t kMostGroups = 4400;

/// Errors   InputError: what the kernels would refuse once everything is loaded.
void require_config(const ModelConfig& model, const SchedulerConfig& config,
                    const EngineOptions& options) {
  if (!std::has_single_bit(config.block_size)) {
    throw InputError(
        "--block-size",
        fmt::format("{} is not a power of two, as the kernels need", config.block_size), "use 16");
  }
  const int64_t slots = options.lora ? config.residency.max_loras : 0;
  if (slots * model.num_experts > kMostGroups) {
    throw InputError("--max-loras",
                     fmt::format("{} slots of {} experts are more than {} groups of rows", slots,
                                 model.num_experts, kMostGroups),
                     fmt::format("use {} at most", kMostGroups / model.num_experts));
  }
}

/// Of the layers that have no experts.
int64_t widest_mlp(const ModelConfig& model) {
  for (int64_t i = 0; i < model.num_layers; ++i) {
    if (!has_experts(model, i)) return model.intermediate;
  }
  return 0;
}

int64_t slot_image_bytes(const ModelConfig& model, const EngineOptions& options) {
  return options.lora ? slot_layout(model, options).bytes() : 0;
}

}  // namespace

AttentionPlan plan_attention(const ModelConfig& model, const SchedulerConfig& bounded,
                             reference::Dtype dtype) {
  return AttentionPlan({.dtype = dtype,
                        .num_heads = int32_t(model.num_heads),
                        .kv_heads = int32_t(model.num_kv_heads),
                        .head_dim = int32_t(model.head_dim),
                        .block_size = int32_t(bounded.block_size),
                        .scale = float(1 / std::sqrt(double(model.head_dim)))},
                       {.max_tokens = bounded.max_num_batched_tokens,
                        .max_rows = int32_t(bounded.max_num_seqs),
                        .max_context = int32_t(bounded.max_model_len)});
}

PassLayout lay_out_pass(const ModelConfig& model, const SchedulerConfig& bounded,
                        const EngineOptions& options) {
  const auto size = int64_t(size_bytes(options.dtype));
  const int64_t q = model.num_heads * model.head_dim, kv = model.num_kv_heads * model.head_dim;
  PassLayout out;
  out.num_tokens = bounded.max_num_batched_tokens;
  out.num_sampled = bounded.max_num_seqs;
  const int64_t tokens = out.num_tokens, sampled = out.num_sampled;
  Arena arena;
  out.x = arena.add(tokens * model.hidden * size);
  out.normed = arena.add(tokens * model.hidden * size);
  out.qkv = arena.add(tokens * (q + 2 * kv) * size);
  out.attended = arena.add(tokens * q * size);
  out.delta = arena.add(tokens * model.hidden * size);
  const int64_t rows = tokens * model.experts_per_token;  // of experts
  const int64_t inner = std::max(tokens * widest_mlp(model), rows * model.expert_intermediate);
  out.gate_up = arena.add(2 * inner * size);
  out.activation = arena.add(inner * size);
  out.expert_out = arena.add(rows * model.hidden * size);
  out.router_logits = arena.add(tokens * model.num_experts * 4);
  out.experts = arena.add(rows * 4);
  out.router_weights = arena.add(rows * 4);
  out.sampled = arena.add(sampled * model.hidden * size);
  out.logits = arena.add(sampled * model.vocab * 4);
  out.ids = arena.add(tokens * 4);
  out.tokens = arena.add(sampled * 4);
  out.logprobs = arena.add(sampled * 8);
  out.top_tokens = arena.add(sampled * kMostLogprobs * 4);
  out.top_logprobs = arena.add(sampled * kMostLogprobs * 8);
  if (options.lora) {
    const int64_t max_rank = slot_layout(model, options).max_rank();
    out.lora_h_bytes = int64_t(std::max(workspace_bytes(tokens, kMostSlices, max_rank),
                                        workspace_bytes(rows, kExpertSlices, max_rank)));
    out.lora_h = arena.add(out.lora_h_bytes);
    out.split_sums_bytes = int64_t(
        split_sums_bytes(std::min(tokens, kMostTokensThroughMemory), kMostSlices, max_rank));
    out.split_sums = arena.add(out.split_sums_bytes);
  }
  const StepShape most{int32_t(tokens), int32_t(sampled), int32_t(sampled)};
  out.step_bytes = lay_out_step(most, max_blocks_per_row(bounded)).bytes;
  out.step = arena.add(out.step_bytes);
  const int64_t rope_bytes = int64_t{bounded.max_model_len} * (model.head_dim / 2) * 4;
  out.rope_cos = arena.add(rope_bytes);
  out.rope_sin = arena.add(rope_bytes);
  out.attention = arena.add(plan_attention(model, bounded, options.dtype).workspace_bytes());
  out.bytes = arena.bytes();
  return out;
}

int64_t kv_tensor_bytes(const ModelConfig& model, const SchedulerConfig& config,
                        reference::Dtype dtype) {
  Arena arena;
  arena.add(int64_t{config.num_blocks} * model.num_kv_heads * config.block_size * model.head_dim *
            int64_t(size_bytes(dtype)));
  return arena.bytes();
}

namespace {

// The law's figures for this engine; those of the KV cache for so many blocks.
sim::MemorySplit law_of(const ModelConfig& model, const SchedulerConfig& config,
                        const EngineOptions& options, int64_t usable_bytes) {
  sim::ModelSpec spec = sim::model_spec_of(model, "config.json");
  spec.dtype_bytes = int64_t(size_bytes(options.dtype));
  sim::GpuSpec gpu;
  gpu.memory_bytes = usable_bytes;
  sim::MemoryOptions law;
  law.gpu_memory_utilization = 1;
  law.block_size = config.block_size;
  law.max_num_seqs = config.max_num_seqs;
  law.max_num_batched_tokens = config.max_num_batched_tokens;
  law.max_lora_rank = options.max_lora_rank;
  law.lora_dtype = options.lora_dtype;
  std::string targets = "all-linear";
  if (options.modules.embed_tokens) targets += ",embed_tokens";
  if (options.modules.lm_head) targets += ",lm_head";
  law.targets = sim::LoraTargets(targets);
  const int64_t max_loras = options.lora ? config.residency.max_loras : 0;
  return plan_memory(spec, gpu, law, max_loras, config.residency.max_cpu_loras).split;
}

std::string gib(int64_t bytes) { return fmt::format("{:.2f} GiB", double(bytes) / double(kGiB)); }

std::string shortage(const EngineMemory& memory, int64_t missing) {
  std::string parts;
  for (const MemoryLine& line : memory.lines) {
    parts += fmt::format("{}{} {}", parts.empty() ? "" : " + ", line.what, gib(line.planned_bytes));
  }
  return fmt::format("does not fit: {} need {} more than the {} that the engine may use", parts,
                     gib(missing), gib(memory.usable_bytes));
}

}  // namespace

EngineMemory plan_engine_memory(const ModelConfig& model, const SchedulerConfig& config,
                                const EngineOptions& options, int64_t product_bytes,
                                int64_t free_bytes, double utilization) {
  require_gpu_model(model, options.dtype);
  require_config(model, config, options);
  EngineMemory out;
  out.usable_bytes = int64_t(double(free_bytes) * utilization);
  const sim::MemorySplit law = law_of(model, config, options, out.usable_bytes);
  const int64_t weights = lay_out_weights(model, options.dtype).bytes;
  const int64_t slots = config.residency.max_loras * slot_image_bytes(model, options);
  SchedulerConfig one_block = config;
  one_block.num_blocks = 1;
  const int64_t block = 2 * model.num_layers * kv_tensor_bytes(model, one_block, options.dtype);

  // The step's arrays grow with the longest request, which the number of blocks may bound: count
  // the longest.
  SchedulerConfig bounded = config;
  if (bounded.num_blocks == 0) bounded.num_blocks = UINT32_MAX / config.block_size;
  bounded = bounded_by_model(bounded, model);
  const int64_t pass = lay_out_pass(model, bounded, options).bytes + product_bytes + kRuntimeBytes;
  const int64_t left = out.usable_bytes - weights - slots - pass;
  const int64_t fitting = std::max<int64_t>(0, left) / std::max<int64_t>(1, block);
  const int64_t wanted = config.num_blocks > 0 ? config.num_blocks : std::max<int64_t>(2, fitting);
  out.lines = {{"weights", law.weights_bytes, weights},
               {fmt::format("{} slots", options.lora ? config.residency.max_loras : 0),
                law.slot_bytes, slots},
               {fmt::format("{} KV blocks", wanted), wanted * law.block_bytes, wanted * block},
               {"workspace and runtime", law.reserve_bytes, pass}};
  if (wanted > fitting) {
    out.problem = shortage(out, wanted * block - left);
  } else {
    out.num_blocks = wanted;
  }
  return out;
}

std::string memory_table(const EngineMemory& memory, const std::vector<int64_t>& allocated) {
  std::string out =
      fmt::format("{:<24}{:>12}{:>12}{:>12}\n", "memory", "law", "planned", "allocated");
  for (size_t i = 0; i < memory.lines.size(); ++i) {
    const MemoryLine& line = memory.lines[i];
    out += fmt::format("{:<24}{:>12}{:>12}{:>12}\n", line.what, gib(line.law_bytes),
                       gib(line.planned_bytes), i < allocated.size() ? gib(allocated[i]) : "-");
  }
  return out;
}

}  // namespace loratory::gpu
