#pragma once

#include <string>

#include "scheduler_sim/metrics/results.hpp"

namespace loratory::sim {

/// A real run of a trace and its simulation, side by side: throughput, TTFT, TPOT and ITL, and the
/// simulation's error: simulated / real - 1, for a TTFT below kSlowTtftMs also the difference, as
/// docs/results.md judges predictions. A table of at most 100 columns.
std::string simulation_error_text(const ConfigResult& real, const ConfigResult& simulated);

}  // namespace loratory::sim
