#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/engine.hpp"
#include "cli/flags.hpp"
#include "cli/measured_engine.hpp"
#include "cli/output_files.hpp"
#include "cli/progress.hpp"
#include "cli/provenance.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/wording.hpp"
#include "scheduler_sim/cost/step_profile.hpp"
#include "scheduler_sim/report/validation_report.hpp"

namespace loratory::cli {
namespace {

constexpr uint64_t kMostRunSeed = UINT64_MAX - 100;  // runs take a few more from there

struct ValidateOptions {
  MeasuredOptions measured;
  std::string profile, rows;
  std::string json, csv, html;
  uint64_t seed = 1;
  int num_threads = 0;
};

std::vector<std::string> step_times_of(const sim::MeasuredTable& table,
                                       const std::string& profile) {
  std::set<std::string> engines;
  std::vector<std::string> found;
  for (const sim::MeasuredRun& run : table.runs) {
    if (!engines.insert(fmt::format("{} {} {}", run.model, run.engine, run.gpu)).second) continue;
    std::string text =
        at_place_of(run, [&] { return describe_cost_model(system_of(run, profile)); });
    if (std::ranges::count(found, text) == 0) found.push_back(std::move(text));
  }
  return found;
}

sim::ServerTerms server_terms(const std::string& profile) {
  return profile.empty() ? sim::ServerTerms{} : sim::read_step_profile(profile).server;
}

std::vector<sim::PredictedRun> predict(const sim::MeasuredTable& table,
                                       const ValidateOptions& options) {
  Progress progress("simulating");
  return sim::predict_runs(
      table.runs, [&](const sim::MeasuredRun& run) { return engine_of_run(run, options.profile); },
      server_terms(options.profile),
      {.seed = options.seed,
       .num_threads = options.num_threads,
       .on_progress = [&](int64_t done, int64_t total) { progress.show(done, total, "runs"); }});
}

void run(const CLI::App& command, const ValidateOptions& options) {
  std::vector<InputFile> inputs = input_files(options.measured);
  inputs.push_back({"the profile", options.profile});
  OutputFiles files(command, inputs);
  files.open("--json", options.json);
  files.open("--csv", options.csv);
  files.open("--html", options.html);
  sim::ValidationReport report;
  MeasuredRuns measured = read_measured(options.measured);
  report.table = std::move(measured.table);
  if (!options.rows.empty()) keep_matching(report.table.runs, options.rows);
  report.step_times = step_times_of(report.table, options.profile);
  report.predicted = predict(report.table, options);
  report.errors = sim::validate(report.table.runs, report.predicted);
  report.provenance = provenance();
  report.provenance.seed = options.seed;
  report.provenance.inputs = std::move(measured.inputs);
  std::fputs(sim::validation_console(report).c_str(), files.table());
  if (auto* out = files.find("--json")) sim::write_validation_json(*out, report);
  if (auto* out = files.find("--csv")) sim::write_validation_csv(*out, report);
  if (auto* out = files.find("--html")) sim::write_validation_html(*out, report);
  files.commit();
}

}  // namespace

void add_validate(CLI::App& app) {
  CLI::App& command = *app.add_subcommand(
      "validate", "Simulate measured servers from their descriptions: how far off are we?");
  const auto options = std::make_shared<ValidateOptions>();
  add_measured_options(command, options->measured);
  command.add_option("--profile", options->profile,
                     "Step times fitted to a server, instead of measured operators: a file, or one "
                     "that loratory ships");
  command.add_option("--rows", options->rows,
                     "Only the runs with this text in their place, group or sweep");
  add_number(command, "--seed", options->seed, {0, kMostRunSeed}, "Of arrivals and lengths");
  add_number(command, "--threads", options->num_threads, {0, 1024},
             "Parallel simulations, 0 = all cores");
  command.add_option("--json", options->json, "Write everything")->group("Outputs");
  command.add_option("--csv", options->csv, "Write one row per run")->group("Outputs");
  command.add_option("--html", options->html, "Write the offline report page")->group("Outputs");
  command.final_callback([&command, options] { run(command, *options); });
}

}  // namespace loratory::cli
