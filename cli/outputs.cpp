#include "cli/outputs.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "cli/config_file.hpp"
#include "cli/flags.hpp"
#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/units.hpp"
#include "scheduler_sim/report/csv.hpp"
#include "scheduler_sim/report/html.hpp"
#include "scheduler_sim/report/json.hpp"
#include "scheduler_sim/report/perfetto.hpp"
#include "scheduler_sim/report/prometheus.hpp"

namespace loratory::cli {
void add_output_options(CLI::App& command, OutputOptions& options) {
  command.add_option("--json", options.json, "Write results.json, the authority")->group("Outputs");
  command.add_option("--csv", options.csv, "Write one row per configuration")->group("Outputs");
  command.add_option("--requests-csv", options.requests_csv, "Write one row per request")
      ->group("Outputs");
  command.add_option("--html", options.html, "Write the offline report page")->group("Outputs");
  command.add_option("--perfetto", options.perfetto, "Write a Chrome trace for ui.perfetto.dev")
      ->group("Outputs");
  command.add_option("--prom", options.prometheus, "Write a Prometheus snapshot")->group("Outputs");
}

namespace {

// How far a limit is missed is a ratio, and that to nearly nothing is none.
void add_limit(CLI::App& command, const std::string& flag, double& limit_ms,
               const std::string& help) {
  constexpr Range<double> kMs{0, 1e9};
  constexpr double kLeastMs = 0.001;
  const auto refuse_tiny = [=](const std::string& text) {
    const double ms = parse_number(flag, text, kMs);
    if (ms == 0 || ms >= kLeastMs) return;
    throw InputError(flag, fmt::format("{} ms is less than a microsecond", ms),
                     "give 0.001 or more, or 0 for no limit");
  };
  add_number(command, flag, limit_ms, kMs, help)->each(refuse_tiny)->group("SLO");
}

}  // namespace

void add_slo_options(CLI::App& command, sim::Slo& slo) {
  add_limit(command, "--slo-ttft-ms", slo.ttft_ms, "Limit of the time to first token, 0 = none");
  add_limit(command, "--slo-tpot-ms", slo.tpot_ms, "Limit of the time per output token, 0 = none");
  add_number(command, "--slo-percentile", slo.percentile, {0, 100},
             "Percentile that must meet the limits")
      ->group("SLO");
}

const sim::ConfigResult& detailed_row(const sim::SizeResult& result) {
  LORATORY_ASSERT(!result.configs.empty(), "a result has at least one row");
  if (result.recommended >= 0) return result.configs[size_t(result.recommended)];
  for (const sim::ConfigResult& row : result.configs) {
    if (!row.requests.empty()) return row;
  }
  return result.configs.front();
}

std::vector<InputFile> input_files(const CLI::App& command, const WorkloadOptions& workload,
                                   const SystemOptions& system) {
  return {{"the trace", workload.trace_path},
          {"the file of --popularity", popularity_file(workload.adapters)},
          {"the model", system.model},
          {"the profile", system.profile},
          {"the config file", config_path(command)}};
}

void open_outputs(OutputFiles& files, const OutputOptions& options) {
  files.open("--json", options.json);
  files.open("--csv", options.csv);
  files.open("--requests-csv", options.requests_csv);
  files.open("--html", options.html);
  files.open("--perfetto", options.perfetto);
  files.open("--prom", options.prometheus);
}

namespace {

std::string what_was_drawn(const sim::PerfettoExtent& extent) {
  if (extent.is_complete()) return "";
  return fmt::format(
      "--perfetto draws the first {} of {} requests, {} of {} slot spans\n",
      format_count(int64_t(extent.requests)), format_count(int64_t(extent.all_requests)),
      format_count(int64_t(extent.slot_spans)), format_count(int64_t(extent.all_slot_spans)));
}

}  // namespace

std::string write_outputs(OutputFiles& files, const sim::SizeResult& result,
                          const sim::Trace& trace, bool perfetto) {
  std::string note;
  const sim::ConfigResult& row = detailed_row(result);
  if (auto* out = files.find("--json")) sim::write_results_json(*out, result);
  if (auto* out = files.find("--csv")) {
    sim::write_results_csv(*out, result.configs, result.workload.engine);
  }
  if (auto* out = files.find("--requests-csv")) {
    sim::write_requests_csv(*out, row.requests, trace);
  }
  if (auto* out = files.find("--html")) sim::write_html(*out, result, trace.adapters);
  if (auto* out = perfetto ? files.find("--perfetto") : nullptr; out != nullptr) {
    note = what_was_drawn(sim::write_perfetto(*out, row, result.provenance, trace.adapters));
  }
  if (auto* out = files.find("--prom")) {
    sim::write_prometheus(*out, row, result.workload, result.provenance);
  }
  return note;
}

}  // namespace loratory::cli
