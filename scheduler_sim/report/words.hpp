#pragma once

#include <string>
#include <vector>

#include "scheduler_sim/sizing/size_result.hpp"

/// Sentences that the console and the page share, so that they never disagree.
namespace loratory::sim::report {

struct Fact {
  std::string label;
  std::string value;
};

/// Trace, workload, adapters, system, SLO, seeds, flags that were given, defaults that matter most:
/// what was asked.
std::vector<Fact> workload_facts(const SizeResult& result);

/// "--tp 2 --max-num-seqs 64": the flags that were given, without the trace; empty if none.
std::string given_settings(const Provenance& provenance);

/// "--max-loras 16 --max-cpu-loras 256", and of a fleet its replicas and router.
std::string flags_of(const ConfigResult& config);

/// Nobody gave it, and results depend on it so much that it is shown: tensor parallelism, types,
/// limits, policy, load mode. Every other default is on the page and in results.json.
bool is_notable_default(const Setting& setting);

/// "--tp 1 --dtype auto": those of them that this command has; empty if none.
std::string notable_defaults(const Provenance& provenance);

/// "Set --max-loras 16 --max-cpu-loras 256" or that no configuration meets the SLOs.
std::string headline(const SizeResult& result);

/// Do they differ in max_cpu_loras? Then a table of them shows it.
bool host_sizes_differ(const std::vector<ConfigResult>& configs);

/// "TTFT p99 <= 500 ms, TPOT p99 <= 50 ms", or "none".
std::string slo_sentence(const Slo& slo);

}  // namespace loratory::sim::report
