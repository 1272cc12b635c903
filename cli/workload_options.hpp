#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "scheduler_sim/trace/reader.hpp"
#include "scheduler_sim/workload/adapter_assignment.hpp"

namespace CLI {
class App;
}

namespace loratory::cli {

/// Which adapters requests ask for: --adapters, --popularity, --ranks.
struct AdapterOptions {
  uint32_t num_adapters = 0;
  std::string popularity = "uniform";
  std::vector<uint32_t> ranks;  ///< empty = 16

  std::vector<uint32_t> ranks_or_default() const;
  /// The law asks for adapters: a number was given, or a file that has its own.
  bool are_given() const;
};

/// The trace that a subcommand runs on: --trace and how to read it, --seed, --rate-scale,
/// --replace-adapters and the flags of AdapterOptions.
struct WorkloadOptions {
  std::string trace_path;
  sim::ReadOptions read;
  AdapterOptions adapters;
  bool replace_adapters = false;
  uint64_t seed = 0;
  double rate_scale = 1;
};

/// The file that --popularity names; empty if its law has none.
std::string popularity_file(const AdapterOptions& options);

/// The flags fill `options`, which must outlive the parsing.
void add_adapter_options(CLI::App& app, AdapterOptions& options);
void add_workload_options(CLI::App& app, WorkloadOptions& options);

/// The file as it is. Throws InputError.
sim::Trace read_workload_trace(const WorkloadOptions& options);

/// Scales the rate, then assigns adapters drawn with `seed` if the flags ask for them; every
/// adapter has a rank afterwards. `max_lora_rank` is 0 if it was not given. Throws InputError, e.g.
/// when the trace has adapters of its own, or one is dealt a rank above `max_lora_rank`.
void apply_workload(sim::Trace& trace, const WorkloadOptions& options, uint64_t seed,
                    int64_t max_lora_rank);

/// read_workload_trace, then apply_workload with options.seed.
sim::Trace load_workload(const WorkloadOptions& options, int64_t max_lora_rank);

/// For the header of an output: "256 adapters, zipf:1, ranks 8,16" or "64 adapters of the trace".
/// `traces` are those of all seeds.
std::string describe_adapters(std::span<const sim::Trace> traces, const WorkloadOptions& options);

}  // namespace loratory::cli
