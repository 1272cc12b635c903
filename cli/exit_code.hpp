#pragma once

#include <cstdint>

#include "scheduler_sim/sizing/size_result.hpp"

namespace loratory::cli {

/// What the program ends with; docs/results.md has them for users.
enum class ExitCode : uint8_t {
  good = 0,        ///< a configuration is recommended; a replay, a trace command did its work
  failure = 1,     ///< a --fail-if holds; or what is nobody's bad input: a full disk, no memory
  bad_input = 2,   ///< a flag, a file or a row is wrong; nothing was run, or nothing is left of it
  slo_missed = 3,  ///< some configurations fit in memory, none meets the SLO
  nothing_fits = 4,  ///< no configuration fits in memory
};

ExitCode exit_code_of(const sim::SizeResult& result);

/// Ends a subcommand whose outputs are written: throws CLI::RuntimeError unless the code is good.
void end_with(ExitCode code);

}  // namespace loratory::cli
