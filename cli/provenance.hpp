#pragma once

#include "scheduler_sim/sizing/size_result.hpp"

namespace loratory::cli {

/// "0.1.0 (commit 1a2b3c4)".
std::string version_text();

/// Called once, by main().
void remember_command(int argc, const char* const* argv);

/// Command, commit and version of this run; seed and inputs are left to the subcommand.
sim::Provenance provenance();

}  // namespace loratory::cli
