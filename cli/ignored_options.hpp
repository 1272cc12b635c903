#pragma once

#include "cli/system_options.hpp"
#include "cli/workload_options.hpp"
#include "scheduler_sim/metrics/results.hpp"
#include "scheduler_sim/trace/trace.hpp"

namespace CLI {
class App;
}

/// A flag that was given and changes nothing would be believed to have had an effect, so it is an
/// InputError. docs/results.md lists the ones that are harmless.
namespace loratory::cli {

/// What the flags of `command` (replay or size) tell by themselves; before anything is read.
void refuse_ignored_options(const CLI::App& command, const WorkloadOptions& workload,
                            const SystemOptions& system, const sim::Slo& slo);

/// What the trace tells, its adapters assigned.
void refuse_ignored_options(const CLI::App& command, const sim::Trace& trace);

}  // namespace loratory::cli
