#pragma once

#include <cstdint>

namespace loratory::sim {

/// What a configuration lacks. Sizing finds it by replays that are spared one bottleneck at a time
/// (sizing/blame.hpp); nothing here is a guess.
enum class CauseKind : uint8_t {
  none,             ///< the SLO is met, or nobody has looked
  too_large,        ///< a request needs more KV blocks than there are
  too_long,         ///< a request is longer than max_model_len
  none_completes,   ///< every request is cancelled before its last token
  slots,            ///< requests wait for a slot of the GPU
  loads,            ///< requests wait while their adapter is read or copied
  slots_and_loads,  ///< neither alone
  kv_cache,         ///< too few KV blocks
  seats,            ///< max_num_seqs
  lora_compute,     ///< the time that LoRA adds to the steps
  load_peaks,       ///< the base model alone misses; with Poisson arrivals it would not
  gpu_speed,        ///< the base model alone misses, however its requests arrive
};

/// Cause::figure of slots and loads where a replay does not show what requests wait for.
inline constexpr double kUnknownFigure = -1;

/// Why an SLO is missed. A "miss" is a measured percentile over its limit, of TTFT or TPOT
/// whichever is larger: 2 = twice what is allowed, up to 1 = met.
struct Cause {
  CauseKind kind = CauseKind::none;
  bool is_ttft = true;      ///< the miss is TTFT's, not TPOT's
  double miss = 0;          ///< of the configuration; 0 = no request was measured
  double miss_without = 0;  ///< with the bottleneck taken away
  double miss_of_base = 0;  ///< of the base model alone: the same requests, no adapters, no slots
  /// too_large, too_long, none_completes: the number of requests. slots, loads: the share of
  /// requests that waited a millisecond or more for it, or kUnknownFigure. load_peaks: request rate
  /// of the busiest 10 s (of a trace below 100 s, the busiest tenth) over the mean.
  double figure = 0;
};

}  // namespace loratory::sim
