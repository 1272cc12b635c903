#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "scheduler_sim/residency/residency.hpp"
#include "scheduler_sim/time.hpp"

namespace loratory::sim {

enum class LoadMode : uint8_t {
  overlap,  ///< a request waits until its adapter is on the GPU
  blocking  ///< it is admitted at once, and its first step waits
};
/// In blocking mode, how the adapters of a step get to the GPU. Those of a step that are there stay
/// (`needed`); or they are activated one by one, in the order of a set, each in place of the
/// adapter that was activated least recently, which may be one that the step needs and activates
/// later (vLLM, lora/worker_manager.py, _apply_adapters). With all slots in use one missing adapter
/// then costs up to as many copies as there are slots.
enum class ActivationOrder : uint8_t { needed, one_by_one };
/// When the rows of a step are sorted by adapter.
enum class PackMode : uint8_t { off, prefill_only, on };
/// Whom a walk visits first: the oldest, or requests for adapters on the GPU [7.23].
enum class AdmissionOrder : uint8_t { arrival, packed };

/// The defaults and limits are those of docs/scheduler.md, part "Defaults".
struct SchedulerConfig {
  ResidencyConfig residency;
  uint32_t block_size = 16;                ///< tokens per KV block
  uint32_t num_blocks = 0;                 ///< KV blocks, the null block included
  uint32_t max_num_batched_tokens = 2048;  ///< tokens per step, >= max_num_seqs
  uint32_t max_num_seqs = 256;             ///< requests per step
  uint32_t long_prefill_threshold = 0;     ///< most tokens of one request per step, 0 = no limit
  bool chunked_prefill = true;             ///< false: a prompt is computed in one step
  uint32_t max_model_len = std::numeric_limits<uint32_t>::max();  ///< prompt + output, in tokens
  LoadMode load_mode = LoadMode::overlap;
  ActivationOrder activation = ActivationOrder::needed;
  PackMode pack = PackMode::prefill_only;
  AdmissionOrder admission_order = AdmissionOrder::arrival;
  bool prefix_cache = true;
  bool use_priorities = true;           ///< false: first come, first served
  int64_t t_starve_ns = 3'000'000'000;  ///< since the first rejection; kNever = off
  int64_t n_starve = 64;                ///< walks; kNever = off, 0 = always
  double drain_factor = 1.2;            ///< length of a drain in longest remaining outputs, >= 0
  /// StepPlan::num_waiting_seen is counted, which costs O(log of what waits) for each request.
  bool count_waiting_seen = false;

  /// Does anybody reserve?
  bool bounds_starvation() const { return n_starve != kNever || t_starve_ns != kNever; }
  /// One sentence naming the first setting that is out of its limits, empty if all are legal.
  std::string problem() const;
};

}  // namespace loratory::sim
