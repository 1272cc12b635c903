#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "scheduler_sim/measured/measured_table.hpp"
#include "scheduler_sim/measured/predict_runs.hpp"
#include "scheduler_sim/measured/validation.hpp"
#include "scheduler_sim/sizing/size_result.hpp"

namespace loratory::sim {

/// What `loratory validate` found.
struct ValidationReport {
  MeasuredTable table;                  ///< with the runs that were asked for
  std::vector<PredictedRun> predicted;  ///< of table.runs
  Validation errors;
  std::vector<std::string> step_times;  ///< where those of the runs come from
  Provenance provenance;
};

/// Why rows of the table were not simulated, and how many; in the order of appearance.
struct SkippedRows {
  std::string reason;
  int64_t num_rows = 0;
};
std::vector<SkippedRows> skipped_rows(const ValidationReport& report);

/// The mean and the worst regret of all sweeps; NaN without any.
struct Regret {
  int64_t num_sweeps = 0;
  double mean = RunMeasures::kUnknown, worst = RunMeasures::kUnknown;
};
Regret regret_of(const Validation& errors, SweepChoice::Choice SweepChoice::*whose);

/// Without critical runs, TTFT with them is the same again.
bool is_repeated(const GroupErrors& group, Quantity quantity);

/// "2.8 %" or "12.3 ms", and with a sign: how the console and the page write errors. NaN is "-".
std::string error_size_text(double size, bool is_in_ms);
std::string error_text(double error, bool is_in_ms);
std::string regret_text(double regret);  ///< "0.06 %"

/// "17" of "runs.csv:17".
std::string line_number(const MeasuredRun& run);

/// What `validate` prints: errors by model and group, runs that are critical or wrongly said to
/// start, the choices that lose throughput, what was skipped. At most 100 columns.
std::string validation_console(const ValidationReport& report);

/// One row for each run: its description, what was measured, predicted, and predicted by the other.
void write_validation_csv(std::ostream& out, const ValidationReport& report);

/// "loratory.validation/1": everything.
void write_validation_json(std::ostream& out, const ValidationReport& report);

/// One page that needs no network: errors, each prediction against its measurement, every run.
void write_validation_html(std::ostream& out, const ValidationReport& report);

}  // namespace loratory::sim
