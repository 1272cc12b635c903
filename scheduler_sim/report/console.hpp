#pragma once

#include <string>

#include "scheduler_sim/sizing/size_result.hpp"

namespace loratory::sim {

/// What `size` prints on stdout: the workload, one row per configuration (the recommended one
/// marked with '>', one that does not fit with its reason), what to set, why, and what limits next.
/// ASCII, at most 100 columns: the least important columns leave first. `colour` adds ANSI
/// emphasis; the caller knows whether stdout is a terminal.
std::string size_console(const SizeResult& result, bool colour);

/// What `replay` prints: one configuration in the manner of `vllm bench serve`, 50 columns.
std::string replay_console(const SizeResult& result);

/// What follows it where there is a fleet or a price: cost per configuration, one row a replica.
/// Empty otherwise.
std::string fleet_console(const SizeResult& result);

}  // namespace loratory::sim
