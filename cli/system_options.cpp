#include "cli/system_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>

#include "cli/flags.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/units.hpp"
#include "scheduler_sim/cost/operator_model.hpp"
#include "scheduler_sim/cost/shipped_profiles.hpp"
#include "scheduler_sim/cost/step_profile.hpp"

namespace loratory::cli {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 31;
constexpr double kMostGib = 1 << 20;
constexpr double kLeastGbps = 0.001;
constexpr double kMostGbps = 10000;

// What --engine sets, unless it is given.
constexpr const char* kEngineFlags[] = {"--gpu-memory-utilization",
                                        "--max-num-batched-tokens",
                                        "--max-num-seqs",
                                        "--lora-padded-ranks",
                                        "--lora-max-grid",
                                        "--lora-graphs",
                                        "--load-mode",
                                        "--activation",
                                        "--no-prefetch",
                                        "--cpu-eviction",
                                        "--disk-workers",
                                        "--policy",
                                        "--t-starve-ms",
                                        "--n-starve"};

void add_model_options(CLI::App& app, SystemOptions& o) {
  add_choice(app, "--engine", o.engine, sim::engine_preset_names(),
             "Defaults, memory and adapter loads of this engine; other flags win over it");
  app.add_option("--model", o.model,
                 fmt::format("config.json of the model, or one of {}",
                             fmt::join(sim::model_preset_names(), ", ")))
      ->capture_default_str();
  add_choice(app, "--dtype", o.dtype, {"auto", "bfloat16", "float16", "float32", "fp8"},
             "Type of the weights: auto (the checkpoint's), or fp8 made by the engine on load");
  add_choice(app, "--kv-cache-dtype", o.kv_cache_dtype, {"auto", "fp8"}, "Type of the KV cache");
  app.add_option("--gpu", o.gpu,
                 fmt::format("one of {}, or mem=80GiB,bw=3.35TB/s,flops=989T[,host=,link=]",
                             fmt::join(sim::gpu_preset_names(), ", ")))
      ->capture_default_str();
  add_choice(
      app, "--step-times", o.step_times, {"measured", "roofline"},
      "measured: from operators measured on this GPU or its nearest relative; roofline: from "
      "its datasheet");
  app.add_option(
      "--profile", o.profile,
      fmt::format("Step times fitted to a server, instead of --step-times: a file, or one of {}",
                  fmt::join(sim::shipped_profile_names(), ", ")));
  add_number(app, "--tp", o.tp, {1, 64}, "GPUs that share the model");
  add_number(app, "--max-lora-rank", o.max_lora_rank, {1, 512},
             "Rank that every slot has room for (default: the largest in the trace)")
      ->default_str("");
  app.add_option("--target-modules", o.target_modules,
                 "Modules that adapters target, e.g. q,k,v,o or all-linear,lm_head")
      ->capture_default_str();
  app.add_flag("--lora-padded-ranks", o.lora_padded_ranks,
               "Cost every adapter as if it had the maximum rank");
  app.add_flag("--lora-max-grid", o.lora_max_grid,
               "Cost kernels that launch blocks for idle slots too (vLLM 0.8)");
  add_choice(app, "--lora-dtype", o.lora_dtype, {"auto", "fp8"},
             "Type in which adapters are kept and read: auto (the model's) or fp8");
  add_choice(app, "--lora-graphs", o.lora_graphs, {"both", "one"},
             "both: steps without adapters launch no LoRA kernels; one: every step does");
}

void add_memory_options(CLI::App& app, SystemOptions& o) {
  add_number(app, "--gpu-memory-utilization", o.gpu_memory_utilization, {0.01, 1},
             "Fraction of the card that the engine may use");
  add_number(app, "--reserve-gib", o.reserve_gib, {0, kMostGib},
             "GPU memory for activations and runtime (default: an estimate)")
      ->default_str("");
  add_number(app, "--host-memory-gib", o.host_memory_gib, {0, kMostGib},
             "Host memory for adapters; 0 = no limit");
  add_number(app, "--slot-overhead-mib", o.slot_overhead_mib, {0, kMostGib},
             "Fixed memory per slot (vLLM up to 0.10 on Llama: 6)");
  add_number(app, "--block-size", o.block_size, {1, 65536},
             "Tokens per KV block (default: 16, or the trace's own blocks)")
      ->default_str("");
  add_number(app, "--max-model-len", o.max_model_len, {1, kMostTokens},
             "Longest request: prompt and output tokens (default: as long as the requests are)")
      ->default_str("");
}

void add_scheduler_options(CLI::App& app, SystemOptions& o) {
  add_number(app, "--max-num-seqs", o.max_num_seqs, {1, 65536}, "Most requests in a step");
  add_number(app, "--max-num-batched-tokens", o.max_num_batched_tokens, {1, kMostTokens},
             "Most tokens in a step");
  add_number(app, "--long-prefill-threshold", o.long_prefill_threshold, {0, kMostTokens},
             "Most prompt tokens of one request in a step; 0 = no such limit");
  app.add_flag("--no-chunked-prefill", o.no_chunked_prefill, "Never split a prompt over steps");
  add_choice(app, "--prefix-cache", o.prefix_cache, {"hash", "off"}, "hash or off");
  add_choice(app, "--policy", o.policy, {"fcfs", "priority"},
             "Waiting order: fcfs, or priority (the trace's priorities, lower first)");
  app.add_flag("--pack", o.pack, "Admit requests for adapters on the GPU first");
  add_count_or_inf(app, "--t-starve-ms", o.t_starve_ms,
                   "A request kept waiting this long for a slot reserves one; inf = never");
  add_count_or_inf(app, "--n-starve", o.n_starve, "The same, in scheduling rounds; inf = never");
  add_number(app, "--drain-factor", o.drain_factor, {0, 1e6},
             "How long an adapter drains, as a multiple of its longest running request")
      ->each([&o](const std::string&) { o.has_drain_factor = true; });
}

void add_residency_options(CLI::App& app, SystemOptions& o) {
  add_choice(app, "--gpu-eviction", o.gpu_eviction, {"lru", "fifo", "lfu"}, "lru, fifo or lfu");
  add_choice(app, "--cpu-eviction", o.cpu_eviction, {"idle-first", "gpu-last", "lru"},
             "Which adapter leaves host memory: idle-first; gpu-last (TokenSpeed); lru (vLLM)");
  app.add_flag("--no-prefetch", o.no_prefetch,
               "Load adapters when they get a slot, not when a request arrives");
  add_names(app, "--pin", o.pins,
            "Keep these adapters on the GPU: --pin a,b, or repeat the flag; a name with a comma in "
            "double quotes: '\"a,b\",c'");
  add_choice(app, "--load-mode", o.load_mode, {"overlap", "blocking"},
             "overlap: steps go on while adapters load; blocking");
  add_choice(
      app, "--activation", o.activation, {"needed", "one-by-one"},
      "Blocking loads: adapters of a step keep their slots (needed), or each takes the least "
      "recent one in turn (one-by-one; vLLM)");
  add_number(app, "--disk-workers", o.disk_workers, {1, 32}, "Parallel adapter reads from disk");
  add_choice(app, "--disk-sharing", o.disk_sharing, {"shared", "own"},
             "shared: workers share the disk's bandwidth; own: each has all of it");
  add_number(app, "--disk-gbps", o.disk_gbps, {kLeastGbps, kMostGbps},
             "Disk bandwidth, GB/s (default 1.1)")
      ->default_str("");
  add_number(app, "--h2d-gbps", o.h2d_gbps, {kLeastGbps, kMostGbps},
             "Host to GPU bandwidth, GB/s (default: 0.8 of the GPU's host link)")
      ->default_str("");
}

int64_t to_bytes_per_s(double gbps) { return int64_t(gbps * 1e9); }

sim::MemoryOptions memory_options(const SystemOptions& o, int64_t max_lora_rank) {
  sim::MemoryOptions memory;
  memory.tp = o.tp;
  memory.gpu_memory_utilization = o.gpu_memory_utilization;
  if (o.reserve_gib >= 0) memory.reserve_bytes = int64_t(o.reserve_gib * double(kGiB));
  if (o.block_size > 0) memory.block_size = o.block_size;
  memory.max_num_seqs = o.max_num_seqs;
  memory.max_num_batched_tokens = o.max_num_batched_tokens;
  memory.max_model_len = o.max_model_len;
  memory.max_lora_rank = max_lora_rank;
  memory.targets = sim::LoraTargets(o.target_modules);
  if (o.lora_dtype == "fp8") memory.lora_dtype = sim::LoraDtype::fp8;
  memory.slot_overhead_bytes = int64_t(o.slot_overhead_mib * double(kMiB));
  memory.host_memory_bytes = int64_t(o.host_memory_gib * double(kGiB));
  return memory;
}

int64_t num_lora_matrices(const sim::ModelSpec& model, const sim::LoraTargets& targets) {
  int64_t num_modules = 0;
  for (const sim::ModuleShape& shape : sim::lora_shapes(model, targets)) num_modules += shape.count;
  return 2 * num_modules;
}

sim::LoadCosts load_costs(const SystemOptions& o, const System& system) {
  const sim::GpuSpec& gpu = system.gpu;
  sim::LoadCosts loads;
  if (system.engine.copy_matrix_ns > 0) {
    loads.h2d_latency_ns =
        system.engine.copy_matrix_ns * num_lora_matrices(system.model, system.memory.targets);
  }
  loads.num_workers = o.disk_workers;
  loads.share_disk = o.disk_sharing == "shared";
  if (!o.profile.empty()) {
    const double copy_ns = sim::read_step_profile(o.profile).copy_ns;
    if (copy_ns >= 0) loads.h2d_latency_ns = int64_t(copy_ns);
  }
  if (o.disk_gbps > 0) loads.disk_bytes_per_s = to_bytes_per_s(o.disk_gbps);
  loads.h2d_bytes_per_s = o.h2d_gbps > 0 ? to_bytes_per_s(o.h2d_gbps)
                                         : int64_t(gpu.host_bytes_per_s * gpu.link_fraction);
  return loads;
}

sim::RooflineOptions roofline_options(const SystemOptions& options, const System& system,
                                      sim::EnginePoint point) {
  sim::RooflineOptions roofline;
  roofline.tp = options.tp;
  roofline.targets = system.memory.targets;
  roofline.lora_dtype = system.memory.lora_dtype;
  roofline.lora_kernels = system.engine.lora_kernels;
  if (options.lora_graphs == "one" && point.max_loras > 0)
    roofline.lora_graphs = sim::LoraGraphs::with_lora_only;
  if (options.lora_padded_ranks) roofline.lora_padded_rank = system.memory.max_lora_rank;
  if (options.lora_max_grid) roofline.lora_grid_max_loras = point.max_loras;
  roofline.lora_registered = point.max_cpu_loras;
  return roofline;
}

// Empty: the roofline.
std::string_view table_for(const SystemOptions& options, const sim::GpuSpec& gpu) {
  return options.step_times == "measured" ? sim::operator_table_of(gpu) : std::string_view{};
}

// In what the system differs from the server that the profile was fitted to: "model, GPU". What the
// profile does not say differs in nothing.
std::string not_of_profile(const System& system, int64_t max_rank,
                           const sim::StepProfile& profile) {
  sim::StepProfile own;
  sim::describe_types(own, system.model, system.memory.lora_dtype);
  std::vector<std::string> found;
  const auto add_if = [&](bool differs, const char* what) {
    if (differs) found.emplace_back(what);
  };
  const auto add_unless_same = [&](int sim::StepProfile::*bits, const char* what) {
    add_if(profile.*bits != 0 && profile.*bits != own.*bits, what);
  };
  add_if(profile.model != system.model.name, "model");
  add_if(profile.gpu != system.gpu.name, "GPU");
  add_if(profile.engine != system.engine.version, "engine");
  add_if(profile.tp != system.memory.tp, "tp");
  add_unless_same(&sim::StepProfile::weight_bits, "dtype");
  add_unless_same(&sim::StepProfile::kv_bits, "kv-cache-dtype");
  add_unless_same(&sim::StepProfile::adapter_bits, "lora-dtype");
  add_if(profile.max_rank != 0 && max_rank > profile.max_rank, "rank");
  return fmt::format("{}", fmt::join(found, ", "));
}

void require_consistent(const SystemOptions& o, int64_t trace_max_rank) {
  require_token_for_each(o.max_num_batched_tokens, o.max_num_seqs);
  if (o.no_chunked_prefill && o.long_prefill_threshold > 0) {
    throw InputError("--long-prefill-threshold", "needs chunked prefill",
                     "leave out --no-chunked-prefill");
  }
  if (o.no_chunked_prefill && o.max_model_len > o.max_num_batched_tokens) {
    throw InputError("--no-chunked-prefill", "needs steps as long as --max-model-len",
                     "raise --max-num-batched-tokens");
  }
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  if (o.has_drain_factor && o.t_starve_ms == kNever && o.n_starve == kNever) {
    throw InputError("--drain-factor", "has no effect: no request ever reserves a slot",
                     "leave it out, or give --t-starve-ms or --n-starve a limit");
  }
  if (o.max_lora_rank > 0 && o.max_lora_rank < trace_max_rank) {
    throw InputError(
        "--max-lora-rank",
        fmt::format("{} is below the workload's largest rank {}", o.max_lora_rank, trace_max_rank),
        "raise it");
  }
}

}  // namespace

void add_system_options(CLI::App& app, SystemOptions& options) {
  add_model_options(app, options);
  add_memory_options(app, options);
  add_scheduler_options(app, options);
  add_residency_options(app, options);
  for (const char* flag : kEngineFlags) {
    app.get_option(flag)->each(
        [&options, flag](const std::string&) { options.given.insert(flag); });
  }
}

void require_token_for_each(int64_t max_num_batched_tokens, int64_t max_num_seqs) {
  if (max_num_batched_tokens >= max_num_seqs) return;
  throw InputError("--max-num-batched-tokens",
                   fmt::format("must be at least --max-num-seqs = {}", max_num_seqs),
                   "every running request gets a token in every step");
}

SystemOptions with_engine_defaults(SystemOptions o) {
  const sim::EnginePreset engine = sim::engine_preset(o.engine, sim::parse_gpu_spec(o.gpu), o.tp);
  if (engine.version.empty()) return o;
  const auto set = [&](const char* flag, auto& value, const auto& preset) {
    if (!o.given.contains(flag)) value = preset;
  };
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  set("--gpu-memory-utilization", o.gpu_memory_utilization, engine.gpu_memory_utilization);
  set("--max-num-batched-tokens", o.max_num_batched_tokens, engine.max_num_batched_tokens);
  set("--max-num-seqs", o.max_num_seqs, std::min(engine.max_num_seqs, o.max_num_batched_tokens));
  set("--lora-padded-ranks", o.lora_padded_ranks, engine.padded_ranks);
  set("--lora-max-grid", o.lora_max_grid, engine.max_grid);
  set("--lora-graphs", o.lora_graphs, engine.one_graph ? "one" : "both");
  set("--load-mode", o.load_mode, engine.blocking_loads ? "blocking" : "overlap");
  set("--activation", o.activation, engine.activates_one_by_one ? "one-by-one" : "needed");
  set("--no-prefetch", o.no_prefetch, !engine.prefetch);
  set("--cpu-eviction", o.cpu_eviction, engine.lru_host ? "lru" : "idle-first");
  set("--disk-workers", o.disk_workers, engine.disk_workers);
  set("--policy", o.policy, "fcfs");
  if (!engine.reserves_slots) {
    set("--t-starve-ms", o.t_starve_ms, kNever);
    set("--n-starve", o.n_starve, kNever);
  }
  return o;
}

System resolve_system(const SystemOptions& options, int64_t trace_max_rank) {
  require_consistent(options, trace_max_rank);
  System system;
  system.model = sim::load_model_spec(options.model);
  sim::apply_dtypes(system.model, options.dtype, options.kv_cache_dtype);
  system.model.require_divisible(options.tp);
  system.gpu = sim::parse_gpu_spec(options.gpu);
  system.engine = sim::engine_preset(options.engine, system.gpu, options.tp);
  if (options.has_penalties) {
    system.engine.overheads.penalty_bytes_per_logit = system.engine.penalty_bytes_per_logit;
    system.engine.overheads.penalty_host_row_ns = system.engine.penalty_host_row_ns;
  }
  const int64_t asked = options.max_lora_rank > 0 ? options.max_lora_rank : trace_max_rank;
  const int64_t rank = sim::allowed_lora_rank(system.engine, asked);
  if (options.max_lora_rank > 0 && rank != asked) {
    throw InputError("--max-lora-rank",
                     fmt::format("{} does not allow {}", system.engine.version, asked),
                     fmt::format("it allows {}", fmt::join(system.engine.lora_ranks, ", ")));
  }
  system.memory = memory_options(options, rank);
  system.memory.law = system.engine.law;
  system.memory.host_copy_per_gpu = system.engine.host_copy_per_gpu;
  system.memory.targets.require_modules_of(system.model);
  system.loads = load_costs(options, system);
  return system;
}

std::unique_ptr<sim::StepTimeModel> make_step_model(const SystemOptions& options,
                                                    const System& system, sim::EnginePoint point) {
  if (!options.profile.empty()) {
    const sim::LoraGrid grid(system.model, system.memory.targets, options.tp,
                             system.memory.max_lora_rank, point.max_loras);
    return std::make_unique<sim::ProfileModel>(sim::read_step_profile(options.profile), grid);
  }
  const sim::RooflineOptions roofline = roofline_options(options, system, point);
  const std::string_view table = table_for(options, system.gpu);
  if (table.empty()) {
    return std::make_unique<sim::RooflineModel>(system.model, system.gpu, roofline);
  }
  return std::make_unique<sim::OperatorModel>(system.model, system.gpu, sim::operator_table(table),
                                              roofline, system.engine.overheads);
}

std::string describe_cost_model(const SystemOptions& given) {
  if (!given.profile.empty()) return fmt::format("profile {}", given.profile);
  const SystemOptions options = with_engine_defaults(given);
  const System system = resolve_system(options, 1);
  const std::string_view table = table_for(options, system.gpu);
  if (table.empty()) return "roofline";
  return sim::OperatorModel(system.model, system.gpu, sim::operator_table(table),
                            roofline_options(options, system, {}), system.engine.overheads)
      .description();
}

void describe_step_times(sim::WorkloadSummary& workload, const SystemOptions& options,
                         int64_t max_rank) {
  workload.cost_model = describe_cost_model(options);
  if (options.profile.empty()) return;
  const sim::StepProfile profile = sim::read_step_profile(options.profile);
  workload.expected_error = profile.expected_error;
  workload.profile_of = fmt::format("{}, {}, {}", profile.model, profile.gpu, profile.engine);
  workload.not_of_profile =
      not_of_profile(resolve_system(with_engine_defaults(options), max_rank), max_rank, profile);
}

}  // namespace loratory::cli
