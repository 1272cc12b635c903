#pragma once

#include <string>
#include <vector>

#include "cli/output_files.hpp"
#include "cli/system_options.hpp"
#include "reference/base/input_error.hpp"
#include "scheduler_sim/measured/measured_table.hpp"
#include "scheduler_sim/sizing/engine_replay.hpp"

namespace CLI {
class App;
}

namespace loratory::cli {

/// The files with measured runs, and what is known of their servers beside them.
struct MeasuredOptions {
  std::vector<std::string> files;
  std::string server_log;
  std::vector<std::string> description;  ///< "gpu=H100-80"
};

/// Adds --measured, --server-log and --describe.
void add_measured_options(CLI::App& app, MeasuredOptions& options);

/// For OutputFiles.
std::vector<InputFile> input_files(const MeasuredOptions& options);

/// The runs of all files as one table, and what each file was. Throws InputError.
struct MeasuredRuns {
  sim::MeasuredTable table;
  std::vector<sim::Provenance::Input> inputs;
};
MeasuredRuns read_measured(const MeasuredOptions& options);

/// What the run was started with, as flags; the engine's defaults for the rest.
SystemOptions system_of(const sim::MeasuredRun& run, const std::string& profile);

/// The server of the run. Throws InputError at the run's place.
sim::EngineSpec engine_of_run(const sim::MeasuredRun& run, const std::string& profile);

/// Keeps those of `runs` whose place, group or sweep has the text. Throws InputError at --rows if
/// none has.
void keep_matching(std::vector<sim::MeasuredRun>& runs, const std::string& text);

/// What `make` returns; what it refuses is told at the run's place.
template <typename Make>
auto at_place_of(const sim::MeasuredRun& run, Make make) {
  try {
    return make();
  } catch (const InputError& error) {
    throw InputError(run.place, error.what());
  }
}

}  // namespace loratory::cli
