#include "cli/measured_engine.hpp"

#include <fmt/format.h>

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

}  // namespace

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
