#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler_sim/measured/description.hpp"
#include "scheduler_sim/measured/measured_run.hpp"

namespace loratory::sim {

/// A row that nothing can be simulated from, and why.
struct SkippedRow {
  std::string place;  ///< "runs.csv:17"
  std::string reason;
};

struct MeasuredTable {
  std::string source, checksum, format;
  std::string origin;             ///< who measured, where that is published; else empty
  std::vector<MeasuredRun> runs;  ///< in the file's order
  std::vector<SkippedRow> skipped;
};

/// Reads a table of measured runs: CSV, results of load generators (read_bench_results), the log of
/// a server that only started (read_server_log); plain, gzip or zstd, "-" = stdin. traces/SCHEMA.md
/// has the columns of each format, which are told from the header. An empty cell is a figure that
/// is not known, unless `also` says it. A row whose description then lacks something is skipped,
/// with the reason; a cell that is wrong, or a column that our own format does not have, throws
/// InputError at file:line:column.
MeasuredTable read_measured_runs(const std::string& path, std::span<const DescribedCell> also = {});

/// The same from bytes in memory; `name` stands for the file.
MeasuredTable read_measured_runs_from(std::string_view bytes, std::string_view name,
                                      std::span<const DescribedCell> also = {});

/// What a server's log says, for `also`. Throws InputError.
std::vector<DescribedCell> read_server_log(const std::string& path);

}  // namespace loratory::sim
