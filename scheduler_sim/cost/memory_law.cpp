#include "scheduler_sim/cost/memory_law.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "reference/base/check.hpp"
#include "reference/base/integers.hpp"
#include "reference/base/units.hpp"
#include "scheduler_sim/cost/vllm_memory.hpp"

namespace loratory::sim {
namespace {

constexpr int64_t kRuntimeBytes = kGiB / 4 * 3;
constexpr double kSglangContextBytes = 0.6 * double(kGiB);
constexpr int64_t kLogitBytes = 2 + 4 + 8;  // bf16 and fp32 logits, int64 indices of the sort

// a * b, at most a quarter of the 64-bit range: four such terms still add up without overflow.
int64_t saturating_product(int64_t a, int64_t b) {
  constexpr __int128 kMost = std::numeric_limits<int64_t>::max() / 4;
  return int64_t(std::min(__int128(a) * b, kMost));
}

bool is_vllm(const MemoryOptions& options) {
  return options.law == MemoryLaw::vllm_08 || options.law == MemoryLaw::vllm;
}

void fill_static(const ModelSpec& model, const MemoryOptions& options, int64_t max_loras,
                 MemorySplit& split) {
  if (is_vllm(options)) {
    split.weights_bytes = vllm_static_bytes(model, options, 0);
    split.slot_bytes = vllm_static_bytes(model, options, max_loras) - split.weights_bytes +
                       saturating_product(max_loras, options.slot_overhead_bytes);
  } else {
    split.weights_bytes = model.weight_bytes(options.tp);
    split.slot_bytes = saturating_product(max_loras, slot_bytes(model, options));
  }
}

std::string gib(int64_t bytes) { return fmt::format("{:.2f} GiB", double(bytes) / double(kGiB)); }

std::string hbm_problem(const MemorySplit& split, int64_t max_loras, int64_t needed_blocks) {
  const int64_t needed = split.weights_bytes + split.slot_bytes + split.reserve_bytes +
                         saturating_product(needed_blocks, split.block_bytes);
  return fmt::format(
      "does not fit: weights {} + {} slots {} + reserve {} + {} KV blocks need {} more than the {} "
      "that the engine may use",
      gib(split.weights_bytes), max_loras, gib(split.slot_bytes), gib(split.reserve_bytes),
      needed_blocks, gib(needed - split.hbm_bytes), gib(split.hbm_bytes));
}

std::string host_problem(const MemorySplit& split, int64_t max_cpu_loras, int64_t host_bytes) {
  return fmt::format("does not fit: {} adapters need {} of host memory, {} more than the {} given",
                     max_cpu_loras, gib(split.host_bytes), gib(split.host_bytes - host_bytes),
                     gib(host_bytes));
}

}  // namespace

int64_t slot_bytes(const ModelSpec& model, const MemoryOptions& options) {
  const int64_t per_rank = lora_parameters_per_rank(model, options.targets, options.tp) *
                           lora_dtype_bytes(model, options.lora_dtype);
  return saturating_product(per_rank, options.max_lora_rank) + options.slot_overhead_bytes;
}

int64_t default_reserve_bytes(const ModelSpec& model, const MemoryOptions& options) {
  if (is_vllm(options)) return vllm_reserve_bytes(model, options);
  if (options.law == MemoryLaw::sglang) {
    return int64_t(kSglangContextBytes * options.gpu_memory_utilization);
  }
  const int64_t routed = model.intermediate * std::max<int64_t>(model.experts_per_token, 1);
  const int64_t width = 3 * (routed + model.shared_intermediate) / options.tp;
  const int64_t activations =
      saturating_product(options.max_num_batched_tokens, width * model.dtype_bytes);
  const int64_t logits = saturating_product(options.max_num_seqs, kLogitBytes * model.vocab);
  return kRuntimeBytes + activations + logits;
}

MemoryPlan plan_memory(const ModelSpec& model, const GpuSpec& gpu, const MemoryOptions& options,
                       int64_t max_loras, int64_t max_cpu_loras) {
  LORATORY_ASSERT(options.block_size >= 1, "a KV block holds at least one token");
  model.require_divisible(options.tp);
  MemoryPlan plan;
  MemorySplit& split = plan.split;
  split.hbm_bytes = int64_t(double(gpu.memory_bytes) * options.gpu_memory_utilization);
  fill_static(model, options, max_loras, split);
  split.reserve_bytes =
      options.reserve_bytes >= 0 ? options.reserve_bytes : default_reserve_bytes(model, options);
  split.block_bytes = model.kv_bytes_per_token(options.tp, options.kv_pricing) * options.block_size;
  const int64_t per_rank = adapter_bytes(model, options.targets, /*rank=*/1, options.lora_dtype);
  split.host_bytes =
      saturating_product(max_cpu_loras, saturating_product(options.max_lora_rank, per_rank));
  if (options.host_copy_per_gpu) {
    split.host_bytes = saturating_product(split.host_bytes, options.tp);
  }

  const int64_t left =
      split.hbm_bytes - split.weights_bytes - split.slot_bytes - split.reserve_bytes;
  const int64_t blocks = std::max<int64_t>(left, 0) / split.block_bytes;
  const int64_t longest = ceil_div(options.max_model_len, options.block_size);
  const int64_t needed = std::max<int64_t>(longest, 1);
  if (is_vllm(options)) plan.problem = vllm_slot_problem(model, options, max_loras);
  if (!plan.problem.empty()) return plan;
  if (blocks < needed) {
    plan.problem = hbm_problem(split, max_loras, needed);
  } else if (options.host_memory_bytes > 0 && split.host_bytes > options.host_memory_bytes) {
    plan.problem = host_problem(split, max_cpu_loras, options.host_memory_bytes);
  } else {
    split.kv_blocks = blocks;
    split.kv_bytes = blocks * split.block_bytes;
  }
  return plan;
}

}  // namespace loratory::sim
