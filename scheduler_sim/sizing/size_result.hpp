#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler_sim/cost/expected_error.hpp"
#include "scheduler_sim/metrics/results.hpp"
#include "scheduler_sim/sizing/miss_ratio_curve.hpp"

namespace loratory::sim {

/// A flag and what it was, whether it came from the command line, from --config or from nowhere.
struct Setting {
  std::string name;   ///< without dashes: "max-num-seqs"
  std::string value;  ///< as it would stand on the command line; "true" or "false" of a switch
  bool is_given = false;
};

/// Who ran what: printed in every output.
struct Provenance {
  std::string command;
  std::string commit;
  std::string version;
  uint64_t seed = 0;
  struct Input {
    std::string path, checksum, format;
  };
  std::vector<Input> inputs;      ///< the trace first
  std::vector<Setting> settings;  ///< every flag that can change a result, in the order of --help
};

/// The workload and the system, as shown in the header of every output.
struct WorkloadSummary {
  int64_t num_requests = 0;
  double duration_s = 0;
  double request_rate = 0;  ///< requests / s
  double mean_prompt_tokens = 0, mean_output_tokens = 0;
  int64_t num_adapters = 0;
  std::string adapters;  ///< e.g. "256 adapters, zipf:1.0, ranks 8,16" or "from the trace"
  std::string model, gpu, cost_model;
  ExpectedError expected_error;  ///< of the profile, if it says
  std::string profile_of;        ///< the server it was fitted to: "Llama-3.1-8B, H200, vLLM 0.8.5"
  std::string not_of_profile;    ///< what differs from that server: "model, GPU"; empty = nothing
  std::string engine;            ///< "vLLM 0.8.5", "ideal"; empty = not said
  std::vector<std::string> notes;  ///< what the trace's reader assumed, the model's left out
  int64_t kv_block_tokens = 0;     ///< tokens per KV block
  uint64_t num_rows_skipped = 0;
  std::vector<double> popularity;  ///< share of requests per adapter, descending
  std::vector<std::pair<double, double>> reuse_distance;  ///< (distinct adapters, share <= it)
};

/// How a sweep recommends one of the configurations that do about equally well (sizing/sweep.hpp).
enum class Choice : uint8_t { smallest, robust };

/// What a sweep found beside the rows, where it looked for it.
struct Bounds {
  ConfigResult base;      ///< the base model alone: no size can beat it
  ConfigResult resident;  ///< all adapters resident for free
  /// Why the chosen row misses the SLO at `limit_factor` times the rate, the next step of headroom:
  /// what limits next. Kind none where the row has no headroom, or no end of it.
  Cause limit{};
  double limit_factor = 0;
};

/// Another system, at the size that comes closest on this one.
struct Remedy {
  std::string flags;      ///< "--tp 2"
  bool fits = false;      ///< in memory
  ConfigResult result{};  ///< of the first seed that misses, of the first if all meet
};

/// What would give more slots, or a longer request, room in memory. Not replayed.
struct MoreRoom {
  int32_t max_loras = 0;             ///< that would fit
  std::vector<std::string> changes;  ///< "--tp 4 has room for 812,000 KV tokens"
};

/// What it costs that the engine does not allow the trace's largest rank as max_lora_rank.
struct RankCost {
  std::string engine;   ///< "vLLM 0.8.5"
  std::string allowed;  ///< "8, 16, 32, ..."
  int64_t max_lora_rank = 0;
  int64_t rank_of_trace = 0;
  int64_t bytes = 0;  ///< of each GPU, more than slots of the trace's rank would take
};

/// A sweep. `configs` holds one entry per (max_loras, max_cpu_loras): the median-goodput seed;
/// `goodput_min/max[i]` is the band over all seeds of configs[i].
struct SizeResult {
  bool is_replay = false;  ///< one configuration, replayed by itself: no sweep, nothing to choose
  Provenance provenance;
  WorkloadSummary workload;
  Slo slo;
  std::vector<ConfigResult> configs;
  std::vector<double> goodput_min, goodput_max;
  std::vector<double> ttft_min_ms, ttft_max_ms, tpot_max_ms;  ///< of the SLO percentile
  int32_t num_seeds = 1;
  Choice choice = Choice::robust;
  int32_t recommended = -1;  ///< index into configs, -1 = none meets the SLOs
  int32_t smallest = -1;     ///< what Choice::smallest recommends
  std::optional<Bounds> bounds;
  int64_t longest_request = 0;        ///< prompt and output tokens, of the first trace
  std::vector<Remedy> remedies;       ///< where nothing is recommended: what was tried beside
  std::optional<MoreRoom> more_room;  ///< where memory is what nothing is recommended for
  std::optional<RankCost> rank_cost;  ///< of the recommended size or the closest
  std::vector<MissRatioCurve> miss_ratio_curves;
  /// Of `--replicas auto`: for each max_loras the fewest replicas; `configs` have as many as the
  /// cheapest of them.
  std::vector<ConfigResult> fleets;
};

}  // namespace loratory::sim
