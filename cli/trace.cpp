#include "cli/commands.hpp"

#include <CLI/CLI.hpp>

namespace loratory::cli {

void add_trace(CLI::App& app) {
  CLI::App& trace = *app.add_subcommand("trace", "Inspect, convert and generate request traces");
  trace.require_subcommand(1);
  add_trace_info(trace);
  add_trace_convert(trace);
  add_trace_generate(trace);
}

}  // namespace loratory::cli
