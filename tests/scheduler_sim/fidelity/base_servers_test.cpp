// Measured servers without adapters: fixed lengths, so many requests in flight
// (base_model_servers_measured.csv: aiconfigurator-core 0.12.0, systems/silicon_sample.csv). Each
// row is simulated from its description alone, with measured operators; nothing is fitted to it.
// The figures of docs/fidelity.md are the ones printed here.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "scheduler_sim/cost/engine_preset.hpp"
#include "scheduler_sim/cost/operator_model.hpp"
#include "scheduler_sim/measured/measured_table.hpp"
#include "scheduler_sim/measured/simulate_run.hpp"
#include "tests/scheduler_sim/measured_data.hpp"

namespace loratory::sim {
namespace {

EngineSpec engine_of(const MeasuredRun& run) {
  EngineSpec engine;
  engine.model = load_model_spec(run.model);
  if (run.dtype != "auto") apply_dtypes(engine.model, run.dtype, "auto");
  engine.gpu = parse_gpu_spec(run.gpu);
  const EnginePreset preset = engine_preset(run.engine, engine.gpu, run.tp);
  engine.memory.law = preset.law;
  engine.memory.tp = run.tp;
  engine.memory.gpu_memory_utilization = preset.gpu_memory_utilization;
  engine.memory.max_num_seqs = run.max_num_seqs > 0 ? run.max_num_seqs : preset.max_num_seqs;
  engine.memory.max_num_batched_tokens = run.max_num_batched_tokens;
  engine.memory.max_model_len = run.max_model_len;
  engine.scheduler.max_num_seqs = uint32_t(engine.memory.max_num_seqs);
  engine.scheduler.max_num_batched_tokens = uint32_t(run.max_num_batched_tokens);
  engine.scheduler.max_model_len = uint32_t(run.max_model_len);
  engine.scheduler.prefix_cache = run.prefix_cache;
  engine.make_step_time = [model = engine.model, gpu = engine.gpu, tp = run.tp,
                           overheads = preset.overheads](EnginePoint) {
    RooflineOptions options;
    options.tp = tp;
    return std::make_unique<OperatorModel>(model, gpu, operator_table(operator_table_of(gpu)),
                                           options, overheads);
  };
  return engine;
}

struct Group {
  Errors ttft, tpot;

  void add(const RunMeasures& simulated, const RunMeasures& measured) {
    ttft.add(simulated.mean_ttft_ms, measured.mean_ttft_ms);
    tpot.add(simulated.mean_tpot_ms, measured.mean_tpot_ms);
  }
  void print(const std::string& name) const {
    fmt::print(
        "{:34} {:3} rows; TTFT: median error {:.1f} %, MAPE {:.1f} %, bias {:+.1f} %; TPOT: MAPE "
        "{:.1f} %, bias {:+.1f} %, worst {:.1f} %\n",
        name, ttft.size(), 100 * ttft.median_size(), 100 * ttft.mean_size(), 100 * ttft.median(),
        100 * tpot.mean_size(), 100 * tpot.median(), 100 * tpot.worst_size());
  }
};

// The tables hold vLLM's kernels. Of the servers in FP8 the file does not say how many requests
// were in flight; the batch that it names stands in for them.
TEST(BaseServers, FromMeasuredOperatorsAlone) {
  const auto file = reference_folder() / "base_model_servers_measured.csv";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "no " << file;
  const MeasuredTable table = read_measured_runs(file.string());
  std::map<std::string, Group> groups;
  Group covered;
  for (const MeasuredRun& run : table.runs) {
    const RunMeasures simulated = simulate_run(run, engine_of(run), {}, 1).measures;
    ASSERT_GT(simulated.completed, 0) << run.place;
    groups[run.group].add(simulated, run.measured);
    if (!run.engine.starts_with("vllm")) continue;
    covered.add(simulated, run.measured);
    const std::string prompt = fmt::format("prompts of {:.0f} tokens", run.mean_prompt_tokens);
    for (const std::string& name : {prompt, fmt::format("TP {}", run.tp)}) {
      groups["covered, " + name].add(simulated, run.measured);
    }
  }
  for (const auto& [name, group] : groups) group.print(name);
  covered.print("covered");
  EXPECT_EQ(covered.tpot.size(), 93u);
  EXPECT_LE(covered.tpot.mean_size(), 0.12);
  EXPECT_LE(covered.ttft.median_size(), 0.25);
}

}  // namespace
}  // namespace loratory::sim
