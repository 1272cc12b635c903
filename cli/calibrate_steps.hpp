#pragma once

#include <cstdint>
#include <string>

#include "cli/real_replay.hpp"
#include "cli/system_options.hpp"

namespace CLI {
class App;
}

namespace loratory::cli {

/// `calibrate` from the steps of our own engine: profiled now, or recorded before.
struct StepOptions {
  StepOptions() { real.executor = ""; }

  RealOptions real;
  SystemOptions system;
  int32_t max_loras = 8;
  std::string steps;      ///< a file of recorded steps instead of an executor
  std::string steps_out;  ///< where those of the executor are written
};

void add_step_options(CLI::App& command, StepOptions& options);

/// Is it steps that `calibrate` fits to? Refuses flags of the other kind, and none of both.
bool settle_step_options(const CLI::App& command, StepOptions& options);

/// Profiles the engine or reads its steps, fits the profile, prints how far held traces are from
/// it, and writes `out`.
void calibrate_steps(const CLI::App& command, StepOptions options, const std::string& out,
                     uint64_t seed);

}  // namespace loratory::cli
