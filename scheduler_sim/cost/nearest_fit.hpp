#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "scheduler_sim/cost/memory_law.hpp"

namespace loratory::sim {

/// One change that makes a configuration fit which does not.
struct MemoryRemedy {
  enum class Kind : uint8_t {
    smaller_rank,
    fewer_slots,
    fp8_kv,
    fp8_weights,
    more_gpus,
    other_gpu
  };
  Kind kind = Kind::more_gpus;
  int64_t value = 0;      ///< max_lora_rank, max_loras or GPUs; 0 where there is none
  std::string gpu;        ///< other_gpu
  int64_t kv_tokens = 0;  ///< that the configuration then has
};

/// The changes, one of each kind and the smallest of it, that make `max_loras` slots fit; in the
/// order of Kind, what costs least first. `least_rank` is the workload's largest rank, `ranks` what
/// the engine allows (empty = any power of two), ascending. Empty if nothing helps, or if it fits.
/// Cost: some 100 plans.
std::vector<MemoryRemedy> nearest_fits(const ModelSpec& model, const GpuSpec& gpu,
                                       const MemoryOptions& options, int64_t max_loras,
                                       int64_t max_cpu_loras, int64_t least_rank,
                                       std::span<const int64_t> ranks = {});

/// "--tp 4": what to type.
std::string flags_of(const MemoryRemedy& remedy);
/// "--tp 4 has room for 812,000 KV tokens": and what it gives.
std::string describe_remedy(const MemoryRemedy& remedy);

}  // namespace loratory::sim
