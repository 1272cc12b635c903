#include "scheduler_sim/scheduler/scheduler_config.hpp"

namespace loratory::sim {

std::string SchedulerConfig::problem() const {
  if (residency.max_loras < 1 || residency.max_loras > 4096) return "max_loras must be 1..4096";
  if (residency.max_cpu_loras < residency.max_loras) return "max_cpu_loras must be >= max_loras";
  if (residency.num_load_workers < 1) return "num_load_workers must be >= 1";
  if (block_size < 1) return "block_size must be >= 1";
  if (num_blocks < 2) return "num_blocks must be >= 2 (block 0 is the null block)";
  if (max_num_seqs < 1) return "max_num_seqs must be >= 1";
  if (max_num_batched_tokens < max_num_seqs) {
    return "max_num_batched_tokens must be >= max_num_seqs";
  }
  if (!chunked_prefill && long_prefill_threshold > 0) {
    return "long_prefill_threshold needs chunked_prefill";
  }
  if (!chunked_prefill && max_num_batched_tokens < max_model_len) {
    return "without chunked_prefill max_num_batched_tokens must be >= max_model_len";
  }
  if (!(drain_factor >= 0)) return "drain_factor must be >= 0";
  return {};
}

}  // namespace loratory::sim
