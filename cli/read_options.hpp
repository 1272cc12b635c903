#pragma once

#include "scheduler_sim/trace/reader.hpp"

namespace CLI {
class App;
}

namespace loratory::cli {

/// --format, --skip-bad-rows, --block-tokens and what logs need, for every subcommand that reads a
/// trace.
/// `options` outlives the parse.
void add_read_options(CLI::App& command, sim::ReadOptions& options);

/// sim::read_trace with a progress bar: the file's MB, or the rows of a pipe.
sim::Trace read_with_progress(const std::string& path, sim::ReadOptions options = {});

}  // namespace loratory::cli
