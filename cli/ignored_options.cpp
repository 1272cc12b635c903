#include "cli/ignored_options.hpp"

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/flags.hpp"

namespace loratory::cli {
namespace {

// Without an adapter nothing is loaded, evicted, waited for or drained.
const std::vector<std::string> kAdapterFlags = {
    "--ranks",        "--lora-padded-ranks", "--lora-max-grid", "--gpu-eviction",
    "--cpu-eviction", "--no-prefetch",       "--load-mode",     "--activation",
    "--disk-workers", "--disk-sharing",      "--disk-gbps",     "--h2d-gbps",
    "--pack",         "--t-starve-ms",       "--n-starve",      "--drain-factor"};

bool is_given(const CLI::App& command, const std::string& flag) {
  const CLI::Option* option = command.get_option_no_throw(flag);
  return option != nullptr && option->count() > 0;
}

}  // namespace

void refuse_ignored_options(const CLI::App& command, const WorkloadOptions& workload,
                            const SystemOptions& system, const sim::Slo& slo) {
  if (!system.profile.empty()) {
    refuse_ignored(command,
                   {"--lora-padded-ranks", "--lora-max-grid", "--lora-graphs", "--step-times"},
                   "the step times are those of --profile");
  }
  if (is_given(command, "--kv-blocks")) {
    refuse_ignored(
        command,
        {"--gpu-memory-utilization", "--reserve-gib", "--host-memory-gib", "--slot-overhead-mib"},
        "--kv-blocks sets the KV cache, whatever memory there is");
  }
  if (system.disk_workers == 1) {
    refuse_ignored(command, {"--disk-sharing"}, "one worker has the disk to itself",
                   "leave it out, or raise --disk-workers");
  }
  if (slo.ttft_ms == 0 && slo.tpot_ms == 0) {
    refuse_ignored(command, {"--slo-percentile"}, "there is no limit to meet",
                   "give --slo-ttft-ms or --slo-tpot-ms");
  }
  if (!workload.adapters.are_given()) {
    refuse_ignored(command, {"--replace-adapters"}, "no other adapters are given",
                   "add --adapters N");
    refuse_ignored(command, {"--seeds"}, "a seed deals adapters, and the trace has its own",
                   "leave it out, or add --adapters N");
  }
}

void refuse_ignored_options(const CLI::App& command, const sim::Trace& trace) {
  if (trace.adapters.empty()) {
    refuse_ignored(command, kAdapterFlags, "the workload has no adapters",
                   "add some with --adapters N, or leave it out");
  }
  if (trace.block_tokens == 0) {
    refuse_ignored(command, {"--block-tokens"}, "the trace has no prefix blocks");
  }
}

}  // namespace loratory::cli
