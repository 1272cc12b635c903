#pragma once

#include <string>
#include <vector>

#include "cli/output_files.hpp"
#include "cli/system_options.hpp"
#include "cli/workload_options.hpp"
#include "scheduler_sim/sizing/size_result.hpp"
#include "scheduler_sim/trace/trace.hpp"

namespace CLI {
class App;
}

namespace loratory::cli {

/// Files beside the table on stdout. results.json is the authority, the others are views of it.
struct OutputOptions {
  std::string json, csv, requests_csv, html, perfetto, prometheus;
};

void add_output_options(CLI::App& command, OutputOptions& options);

/// The SLO flags, shared by replay and size.
void add_slo_options(CLI::App& command, sim::Slo& slo);

/// The row that per-request outputs show: the recommended one, else the one with details.
const sim::ConfigResult& detailed_row(const sim::SizeResult& result);

/// The files that a replay or a sweep of these options reads; `command` knows its --config.
std::vector<InputFile> input_files(const CLI::App& command, const WorkloadOptions& workload,
                                   const SystemOptions& system);

void open_outputs(OutputFiles& files, const OutputOptions& options);

/// Writes the outputs that are open, --perfetto only if `perfetto`; commit() is left to the caller.
/// `trace` is that of detailed_row(). A line for the table if --perfetto does not draw all.
std::string write_outputs(OutputFiles& files, const sim::SizeResult& result,
                          const sim::Trace& trace, bool perfetto = true);

}  // namespace loratory::cli
