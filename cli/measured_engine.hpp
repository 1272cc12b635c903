#pragma once

#include <string>
#include <vector>

#include "cli/system_options.hpp"
#include "reference/base/input_error.hpp"
#include "scheduler_sim/measured/measured_run.hpp"
#include "scheduler_sim/sizing/engine_replay.hpp"

namespace loratory::cli {

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
