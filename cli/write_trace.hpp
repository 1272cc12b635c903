#pragma once

#include <string>

#include "cli/output_files.hpp"
#include "scheduler_sim/trace/trace.hpp"

namespace loratory::cli {

/// Writes the trace to the file that `flag` asks for, puts it in its place, and meanwhile draws a
/// progress bar, unless the rows themselves go to a terminal.
void write_trace(OutputFiles& files, const std::string& flag, const sim::Trace& trace);

}  // namespace loratory::cli
