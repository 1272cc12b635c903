#include "cli/measured_engine.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "cli/engine.hpp"
#include "reference/base/wording.hpp"

namespace loratory::cli {
namespace {

// Stands for all requests of the run: make_engine looks at the largest rank and the mean prompt.
sim::Trace summary_of(const sim::MeasuredRun& run) {
  sim::Trace trace;
  for (const int64_t rank : run.ranks) trace.adapters.push_back({"", uint32_t(rank)});
  sim::TraceRequest request;
  request.prompt_tokens = uint32_t(run.mean_prompt_tokens);
  request.output_tokens = uint32_t(run.mean_output_tokens);
  trace.requests.push_back(request);
  return trace;
}

// "run.server.log" beside "run.json"; empty if there is none.
std::string own_log_of(const std::string& file) {
  const std::string log = std::filesystem::path(file).replace_extension(".server.log").string();
  std::error_code ignored;
  return std::filesystem::is_regular_file(log, ignored) ? log : "";
}

}  // namespace

void add_measured_options(CLI::App& app, MeasuredOptions& options) {
  app.add_option("--measured", options.files,
                 "Measured runs: CSV (traces/SCHEMA.md), results of vllm bench serve or SGLang's "
                 "bench_serving, a vLLM server's log; may be repeated; - for stdin")
      ->required()
      ->allow_extra_args(false);
  app.add_option("--server-log", options.server_log,
                 "Log of the vLLM server of these runs: its version, flags and KV cache (default: "
                 "RUN.server.log beside RUN.json)")
      ->default_str("");
  app.add_option("--describe", options.description,
                 "What the runs do not say, as COLUMN=VALUE: gpu=H100-80; may be repeated")
      ->allow_extra_args(false)
      ->type_name("COLUMN=VALUE ...");
}

std::vector<InputFile> input_files(const MeasuredOptions& options) {
  std::vector<InputFile> files{{"the server's log", options.server_log}};
  for (const std::string& file : options.files) {
    files.push_back({"the measured runs", file});
    if (const std::string log = own_log_of(file); !log.empty()) {
      files.push_back({"the server's log", log});
    }
  }
  return files;
}

MeasuredRuns read_measured(const MeasuredOptions& options) {
  std::vector<sim::DescribedCell> described, logged;
  for (const std::string& text : options.description) {
    described.push_back(sim::parse_description(text, "--describe"));
  }
  if (!options.server_log.empty()) logged = sim::read_server_log(options.server_log);
  MeasuredRuns all;
  for (const std::string& file : options.files) {
    std::vector<sim::DescribedCell> cells = described;
    const std::string own = own_log_of(file);
    std::ranges::copy(own.empty() ? logged : sim::read_server_log(own), std::back_inserter(cells));
    sim::MeasuredTable table = sim::read_measured_runs(file, cells);
    all.inputs.push_back({table.source, table.checksum, table.format});
    if (all.inputs.size() == 1) {
      all.table = std::move(table);
      continue;
    }
    std::ranges::move(table.runs, std::back_inserter(all.table.runs));
    std::ranges::move(table.skipped, std::back_inserter(all.table.skipped));
    if (table.origin != all.table.origin) all.table.origin.clear();
  }
  const size_t num_more = all.inputs.size() - 1;
  if (num_more > 0) all.table.source += fmt::format(" and {} more", num_more);
  return all;
}

SystemOptions system_of(const sim::MeasuredRun& run, const std::string& profile) {
  SystemOptions o;
  o.engine = run.engine;
  o.model = run.model;
  o.gpu = run.gpu;
  o.dtype = run.dtype;
  o.tp = run.tp;
  o.profile = profile;
  o.max_lora_rank = run.max_lora_rank;
  o.max_model_len = run.max_model_len;
  o.has_penalties = run.has_penalties;
  o.prefix_cache = run.prefix_cache ? "hash" : "off";
  const auto give = [&](const char* flag, int64_t& value, int64_t measured) {
    if (measured == 0) return;  // the engine's default
    value = measured;
    o.given.insert(flag);
  };
  give("--max-num-seqs", o.max_num_seqs, run.max_num_seqs);
  give("--max-num-batched-tokens", o.max_num_batched_tokens, run.max_num_batched_tokens);
  return with_engine_defaults(o);
}

sim::EngineSpec engine_of_run(const sim::MeasuredRun& run, const std::string& profile) {
  sim::EngineSpec engine =
      at_place_of(run, [&] { return make_engine(system_of(run, profile), summary_of(run)); });
  // The longest request is drawn, and a server takes what its model can.
  if (run.max_model_len == 0) {
    engine.scheduler.max_model_len = sim::SchedulerConfig{}.max_model_len;
  }
  return engine;
}

void keep_matching(std::vector<sim::MeasuredRun>& runs, const std::string& text) {
  std::erase_if(runs, [&](const sim::MeasuredRun& run) {
    return fmt::format("{} {} {}", run.place, run.group, run.sweep).find(text) == std::string::npos;
  });
  if (!runs.empty()) return;
  throw InputError("--rows", fmt::format("no run has {} in its place, group or sweep", shown(text)),
                   "name a group as validate prints it, or leave --rows out");
}

}  // namespace loratory::cli
