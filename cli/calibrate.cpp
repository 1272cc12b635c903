#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/calibrate_steps.hpp"
#include "cli/commands.hpp"
#include "cli/flags.hpp"
#include "cli/measured_engine.hpp"
#include "cli/output_files.hpp"
#include "cli/progress.hpp"
#include "cli/provenance.hpp"
#include "reference/base/input_error.hpp"
#include "scheduler_sim/measured/calibration.hpp"
#include "scheduler_sim/report/calibration_report.hpp"
#include "scheduler_sim/report/validation_report.hpp"

namespace loratory::cli {
namespace {

struct CalibrateOptions {
  MeasuredOptions measured;
  StepOptions steps;
  std::string rows, out, csv;
  bool from_columns = false;
  int num_folds = 5, num_rounds = 4;
  uint64_t seed = 1;
  int num_threads = 0;
};

sim::EngineSpec engine_of_measured(const sim::MeasuredRun& run) { return engine_of_run(run, ""); }

// Runs that were measured under load; the others say nothing of times.
std::vector<sim::MeasuredRun> with_times(std::vector<sim::MeasuredRun> runs) {
  std::erase_if(runs, [](const sim::MeasuredRun& run) {
    const bool ends = run.client.duration_s > 0 || run.client.num_requests > 0;
    return !run.has_traffic() || !ends || !(run.measured.mean_tpot_ms > 0);
  });
  return runs;
}

sim::CalibrationOptions calibration_options(const CalibrateOptions& o) {
  sim::CalibrationOptions options;
  options.num_rounds = o.num_rounds;
  options.seed = o.seed;
  options.from_columns = o.from_columns;
  options.num_threads = o.num_threads;
  return options;
}

sim::Calibration calibrate(const std::vector<sim::MeasuredRun>& runs, const CalibrateOptions& o) {
  Progress progress("calibrating");
  std::atomic<int64_t> done = 0;
  const int64_t total = std::ssize(runs) * (o.num_rounds + 1);
  sim::CalibrationOptions options = calibration_options(o);
  options.on_simulated = [&] { progress.show(++done, total, "runs"); };
  return sim::calibrate(runs, engine_of_measured, options);
}

sim::CrossValidation cross_validate(const std::vector<sim::MeasuredRun>& runs,
                                    const CalibrateOptions& o, const sim::Calibration& all) {
  Progress progress("cross-validating");
  std::atomic<int64_t> done = 0;
  sim::CalibrationOptions options = calibration_options(o);
  options.on_simulated = [&] { progress.show(++done, 0, "runs"); };
  return sim::cross_validate(runs, engine_of_measured, options, all, o.num_folds);
}

// What was predicted of runs by profiles that had not seen their sweeps.
sim::ValidationReport judge(MeasuredRuns measured, sim::CrossValidation folds,
                            const CalibrateOptions& o) {
  sim::ValidationReport report;
  report.table = std::move(measured.table);
  report.predicted = std::move(folds.predicted);
  report.errors = sim::validate(report.table.runs, report.predicted);
  report.step_times = {
      fmt::format("profiles of {} folds, each fitted without the sweeps it predicts", o.num_folds)};
  report.provenance = provenance();
  report.provenance.seed = o.seed;
  report.provenance.inputs = std::move(measured.inputs);
  return report;
}

// Where the runs come from: who published them, or else the file's name.
std::string source_of(const sim::MeasuredTable& table, bool from_columns) {
  const std::string file = std::filesystem::path(table.source).filename().string();
  return fmt::format("loratory calibrate, {} runs of {}{}", table.runs.size(),
                     table.origin.empty() ? file : table.origin,
                     from_columns ? ", from its columns alone" : "");
}

double known(double error) { return std::isfinite(error) ? error : -1; }

sim::ExpectedError expected_error(const sim::Validation& errors, int num_folds) {
  const sim::ErrorsByQuantity& ours = errors.all.ours;
  const auto of = [&](sim::Quantity quantity) { return ours[size_t(quantity)]; };
  return {.num_runs = double(of(sim::Quantity::throughput).num_rows),
          .throughput = known(of(sim::Quantity::throughput).mean_size),
          .itl = known(of(sim::Quantity::itl).mean_size),
          .ttft = known(of(sim::Quantity::slow_ttft).median_size),
          .short_ttft_ms = known(of(sim::Quantity::fast_ttft).median_size),
          .how = fmt::format("{} folds of whole sweeps", num_folds)};
}

void run(const CLI::App& command, const CalibrateOptions& o) {
  if (o.num_folds == 1) {
    throw InputError("--folds", "1 fold leaves no runs to fit", "give 2 or more, or 0 for none");
  }
  OutputFiles files(command, input_files(o.measured));
  files.open("--out", o.out);
  files.open("--csv", o.csv);
  MeasuredRuns measured = read_measured(o.measured);
  sim::MeasuredTable& table = measured.table;
  if (table.runs.empty()) throw InputError(table.skipped[0].place, table.skipped[0].reason);
  if (!o.rows.empty()) keep_matching(table.runs, o.rows);
  table.runs = with_times(std::move(table.runs));
  if (o.num_folds > 0) sim::folds_of(table.runs, o.num_folds);  // an error here costs no simulation
  sim::Calibration calibration = calibrate(table.runs, o);
  sim::StepProfile& profile = calibration.profile;
  profile.source = source_of(table, o.from_columns);
  std::fputs(sim::calibration_console(calibration).c_str(), files.table());
  if (o.num_folds > 0) {
    sim::CrossValidation folds = cross_validate(table.runs, o, calibration);
    const sim::ValidationReport report = judge(std::move(measured), std::move(folds), o);
    profile.expected_error = expected_error(report.errors, o.num_folds);
    fmt::print(files.table(), "\n{}", sim::validation_console(report));
    if (auto* out = files.find("--csv")) sim::write_validation_csv(*out, report);
  }
  *files.find("--out") << sim::format_step_profile(profile);
  files.commit();
}

}  // namespace

void add_calibrate(CLI::App& app) {
  CLI::App& command = *app.add_subcommand(
      "calibrate", "Fit a profile's terms to measured runs of a server; how good is it elsewhere?");
  const auto options = std::make_shared<CalibrateOptions>();
  add_measured_options(command, options->measured);
  command.get_option("--measured")->required(false);
  command.add_option("--out", options->out, "Write the profile, for --profile")->required();
  command.add_option("--rows", options->rows,
                     "Only the runs with this text in their place, group or sweep");
  command.add_flag("--from-columns", options->from_columns,
                   "Fit without simulations: batches by Little's law, seconds instead of minutes");
  add_number(command, "--folds", options->num_folds, {0, 100},
             "Folds of whole sweeps that tell the error on other runs; 0 = none");
  add_number(command, "--rounds", options->num_rounds, {1, 20},
             "Rounds of simulating the runs and fitting");
  add_number(command, "--seed", options->seed, {0, int64_t{1} << 53}, "Of arrivals and lengths");
  add_number(command, "--threads", options->num_threads, {0, 1024},
             "Parallel simulations, 0 = all cores");
  command.add_option("--csv", options->csv, "Write the cross-validated runs, one row each")
      ->group("Outputs");
  add_step_options(command, options->steps);
  command.final_callback([&command, options] {
    if (settle_step_options(command, options->steps)) {
      calibrate_steps(command, options->steps, options->out, options->seed);
    } else {
      run(command, *options);
    }
  });
}

}  // namespace loratory::cli
