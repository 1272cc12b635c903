#pragma once

#include <vector>

#include "cli/output_files.hpp"
#include "cli/system_options.hpp"
#include "scheduler_sim/sizing/engine_replay.hpp"
#include "scheduler_sim/sizing/size_result.hpp"

namespace CLI {
class App;
}

namespace loratory::cli {

/// Every flag of the command but its outputs, in the order of --help, from wherever it came. A
/// default that depends on --engine, the trace, the GPU or the model has the value that it came to.
std::vector<sim::Setting> settings_of(const CLI::App& command, const SystemOptions& system,
                                      const sim::EngineSpec& engine);

/// The trace, then every other file that was read, each with a checksum. What is not a plain file
/// (a preset's name, a pipe) is left out.
std::vector<sim::Provenance::Input> inputs_of(const sim::Trace& trace,
                                              const std::vector<InputFile>& files);

}  // namespace loratory::cli
