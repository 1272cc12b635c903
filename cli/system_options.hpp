#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "scheduler_sim/cost/engine_preset.hpp"
#include "scheduler_sim/cost/gpu_spec.hpp"
#include "scheduler_sim/cost/memory_law.hpp"
#include "scheduler_sim/cost/model_spec.hpp"
#include "scheduler_sim/cost/step_time.hpp"
#include "scheduler_sim/cost/transfer.hpp"
#include "scheduler_sim/sizing/engine_point.hpp"
#include "scheduler_sim/sizing/size_result.hpp"

namespace CLI {
class App;
}

namespace loratory::cli {

/// The system under study as the flags give it: model, GPU, engine limits, policies.
struct SystemOptions {
  std::string engine = "ideal";
  std::set<std::string> given;  ///< flags that the user gave, of those that --engine sets
  std::string model = "Llama-3.1-8B";
  std::string dtype = "auto";           ///< auto, bfloat16, float16, float32, fp8
  std::string kv_cache_dtype = "auto";  ///< auto, fp8
  std::string gpu = "H100-80";
  std::string step_times = "measured";  ///< measured, roofline
  std::string profile;                  ///< empty = as step_times says
  int tp = 1;
  int64_t max_lora_rank = 0;  ///< 0 = the largest rank in the trace
  std::string target_modules = "all-linear";
  bool lora_padded_ranks = false;
  bool lora_max_grid = false;
  std::string lora_dtype = "auto";   ///< auto: the model's; fp8
  std::string lora_graphs = "both";  ///< both, one

  double gpu_memory_utilization = 0.9;
  double reserve_gib = -1;     ///< -1 = from the model and the limits below
  double host_memory_gib = 0;  ///< 0 = no limit
  double slot_overhead_mib = 0;

  int64_t max_num_seqs = 256;
  int64_t max_num_batched_tokens = 2048;
  int64_t block_size = 0;              ///< 0 = 16, or the trace's own blocks
  int64_t max_model_len = 0;           ///< 0 = as long as the requests are
  int64_t long_prefill_threshold = 0;  ///< 0 = off
  bool no_chunked_prefill = false;
  std::string gpu_eviction = "lru";         ///< lru, fifo, lfu
  std::string cpu_eviction = "idle-first";  ///< idle-first, gpu-last, lru
  bool no_prefetch = false;
  std::vector<std::string> pins;      ///< names of adapters
  std::string load_mode = "overlap";  ///< overlap, blocking
  std::string activation = "needed";  ///< needed, one-by-one
  std::string policy = "priority";    ///< fcfs, priority
  bool pack = false;                  ///< packed admission
  std::string prefix_cache = "hash";  ///< hash, off
  bool has_penalties = false;         ///< MeasuredRun's; no flag
  int64_t t_starve_ms = 3000;         ///< INT64_MAX = off
  int64_t n_starve = 64;              ///< 0 = always, INT64_MAX = off
  double drain_factor = 1.2;
  bool has_drain_factor = false;  ///< given by the user

  int disk_workers = 2;
  std::string disk_sharing = "shared";  ///< shared, own
  double disk_gbps = 0;                 ///< GB/s; 0 = LoadCosts' default
  double h2d_gbps = 0;                  ///< GB/s; 0 = the GPU's host link
};

/// Adds the flags, with defaults and limits in their help.
void add_system_options(CLI::App& app, SystemOptions& options);

/// A step has room for a token of each request that runs. Throws InputError.
void require_token_for_each(int64_t max_num_batched_tokens, int64_t max_num_seqs);

/// The flags with --engine's defaults for those that were not given. Throws InputError.
SystemOptions with_engine_defaults(SystemOptions options);

/// The flags resolved: presets looked up, files read.
struct System {
  sim::EnginePreset engine;
  sim::ModelSpec model;
  sim::GpuSpec gpu;
  sim::MemoryOptions memory;
  sim::LoadCosts loads;
};

/// `trace_max_rank` stands in for --max-lora-rank, rounded up to what the engine allows. `options`
/// have the engine's defaults. Throws InputError.
System resolve_system(const SystemOptions& options, int64_t trace_max_rank);

/// The step times of a configuration: the profile if there
/// is one, else from measured operators where the GPU or a relative was measured, else the
/// roofline. `options` have the engine's defaults. Throws InputError for a bad profile.
std::unique_ptr<sim::StepTimeModel> make_step_model(const SystemOptions& options,
                                                    const System& system, sim::EnginePoint point);

/// Whose step times these are: "operators measured on H100-80 (vLLM 0.24.0)", "roofline", or the
/// profile's file. Throws InputError.
std::string describe_cost_model(const SystemOptions& options);
/// The same in `workload`, how far a profile is known to be off, and in what its server differs
/// from a system whose adapters have ranks up to `max_rank`.
void describe_step_times(sim::WorkloadSummary& workload, const SystemOptions& options,
                         int64_t max_rank);

}  // namespace loratory::cli
