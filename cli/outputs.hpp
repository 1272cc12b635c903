#pragma once

#include <string>

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

/// Writes what was asked for; every file is whole or absent.
void write_outputs(const OutputOptions& options, const sim::SizeResult& result,
                   const sim::Trace& trace);

}  // namespace loratory::cli
