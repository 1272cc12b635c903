#include "scheduler_sim/measured/calibration.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/measured/column_batches.hpp"
#include "scheduler_sim/measured/server_fit.hpp"

namespace loratory::sim {
namespace {

using testing::HasSubstr;

// vLLM 0.8 on an H100: what a description of a run says, and nothing of its step times.
EngineSpec engine_of(const MeasuredRun& run) {
  EngineSpec e;
  e.model = load_model_spec(run.model);
  e.gpu = parse_gpu_spec(run.gpu);
  e.memory.max_num_seqs = e.memory.max_num_batched_tokens = 2048;
  e.memory.max_lora_rank = run.max_lora_rank;
  e.memory.block_size = 16;
  e.loads.h2d_latency_ns = 5'000'000;
  e.scheduler.max_num_seqs = e.scheduler.max_num_batched_tokens = 2048;
  e.scheduler.block_size = 16;
  e.scheduler.load_mode = LoadMode::blocking;
  e.scheduler.prefix_cache = false;
  e.scheduler.residency.prefetch = false;
  return e;
}

MeasuredRun run_of(int64_t max_loras, int64_t adapters, double rps, double seconds = 60) {
  MeasuredRun run;
  run.place = "runs.csv:2";
  run.model = "Llama-3.1-8B";
  run.gpu = "H100-80";
  run.engine = "vllm-0.8";
  run.sweep = run.group = std::to_string(adapters) + " adapters";
  run.max_loras = max_loras;
  run.max_cpu_loras = std::max(adapters, max_loras);
  run.max_lora_rank = 16;
  run.ranks = {8, 16};
  run.adapters = {{adapters, rps / double(adapters)}};
  run.lengths = LengthKind::sharegpt;
  run.mean_prompt_tokens = 220;
  run.mean_output_tokens = 200;
  run.client.duration_s = seconds;
  run.client.poll_interval_s = 1;
  return run;
}

// Of what is measured and of what is simulated: no luck between them.
constexpr uint64_t kSeed = 7;

// A server with these terms. They are not the priors.
StepProfile the_server() {
  StepProfile p = prior_profile(engine_of(run_of(8, 8, 1)));
  p.host_ns = 5e6;
  p.term("num_seqs") = 65e3;
  p.term("num_adapters") = 420e3;
  p.expand_block_ns = 1.5;
  p.server.frontend_ms = 9;
  p.server.metrics_ms = 6.6;
  p.server.metrics_us_per_adapter_set = 19;
  p.server.metrics_us_per_name = 0.13;
  return p;
}

std::vector<MeasuredRun> runs_of_the_server(const std::vector<MeasuredRun>& descriptions) {
  std::vector<MeasuredRun> runs = descriptions;
  const StepProfile server = the_server();
  for (MeasuredRun& run : runs) {
    run.measured =
        simulate_run(run, with_profile(engine_of(run), server), server.server, kSeed).measures;
  }
  return runs;
}

// Few and many requests, adapters and slots, with and without a queue for slots.
std::vector<MeasuredRun> sweeps() {
  return runs_of_the_server({run_of(8, 8, 1), run_of(32, 8, 1), run_of(8, 8, 15), run_of(64, 8, 15),
                             run_of(4, 32, 4), run_of(16, 32, 4), run_of(32, 32, 4),
                             run_of(64, 32, 4), run_of(64, 64, 15), run_of(96, 64, 15)});
}

const CalibratedTerm& term_of(const Calibration& calibration, std::string_view name) {
  for (const CalibratedTerm& term : calibration.terms) {
    if (term.term->name == name) return term;
  }
  throw std::runtime_error("no such term");
}

TEST(Calibration, TheTermsOfAKnownServerComeBack) {
  const std::vector<MeasuredRun> runs = sweeps();
  const Calibration c = calibrate(runs, engine_of, {.num_rounds = 4, .seed = kSeed});
  StepProfile truth = the_server();
  for (const CalibratedTerm& term : c.terms) {
    if (!term.is_identified) {
      EXPECT_EQ(term.value, term.prior) << term.term->name;
      continue;
    }
    const double real = term.term->in(truth);
    EXPECT_NEAR(term.value, real, 2.5 * term.error) << term.term->name;
  }
  for (const char* name : {"ns_per.num_seqs", "ns_per.num_adapters", "lora_block_ns.expand"}) {
    const CalibratedTerm& term = term_of(c, name);
    EXPECT_TRUE(term.is_identified) << name;
    const double real = term.term->in(truth);
    EXPECT_LT(std::fabs(term.value - real), 0.5 * std::fabs(term.prior - real)) << name;
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    const double tpot_ms = c.simulated[i].measures.mean_tpot_ms;
    EXPECT_NEAR(tpot_ms / runs[i].measured.mean_tpot_ms, 1, 0.03) << i;  // kNoise of the fit
  }
}

TEST(Calibration, RepeatsOnAnyNumberOfThreads) {
  const std::vector<MeasuredRun> runs =
      runs_of_the_server({run_of(8, 8, 1), run_of(8, 8, 10), run_of(32, 32, 4), run_of(4, 32, 4)});
  CalibrationOptions options{.num_rounds = 1, .seed = kSeed, .num_threads = 1};
  const Calibration one = calibrate(runs, engine_of, options);
  options.num_threads = 3;
  EXPECT_EQ(calibrate(runs, engine_of, options).profile, one.profile);
}

TEST(Calibration, FromColumnsItSimulatesNothingAndComesNear) {
  // Long ones: a queue that grows at first and requests that are not done are not in Little's law.
  const std::vector<MeasuredRun> runs = runs_of_the_server(
      {run_of(8, 8, 1, 600), run_of(32, 8, 1, 600), run_of(8, 8, 12, 600), run_of(64, 8, 12, 600),
       run_of(32, 32, 4, 600), run_of(64, 32, 4, 600), run_of(64, 64, 12, 600)});
  const Calibration c =
      calibrate(runs, engine_of, {.num_rounds = 4, .seed = kSeed, .from_columns = true});
  StepProfile truth = the_server();
  const CalibratedTerm& adapters = term_of(c, "ns_per.num_adapters");
  EXPECT_TRUE(adapters.is_identified);
  EXPECT_LT(adapters.error, adapters.sigma / 3);
  EXPECT_NEAR(adapters.value, adapters.term->in(truth), 3 * adapters.error);
  EXPECT_EQ(c.simulated.front().num_sent, 0);
}

// Tokens in the KV cache for each token that is decoded.
double mean_context(const SimulatedRun& run) {
  double context = 0, tokens = 0;
  for (const SampledStep& step : run.steps) {
    context += double(step.shape.decode_context_tokens);
    tokens += double(step.shape.num_sampled);
  }
  return context / tokens;
}

TEST(ColumnBatches, RunningRequestsAreAsLongAsInASimulation) {
  MeasuredRun run = run_of(8, 8, 12, 600);
  const StepProfile server = the_server();
  const EngineSpec engine = with_profile(engine_of(run), server);
  const SimulatedRun simulated = simulate_run(run, engine, server.server, kSeed, true);
  run.measured = simulated.measures;
  // 7,200 requests, whose context weighted by its output varies by 1.5 times its mean: 2 %, and as
  // much for the draws of the columns. Not weighted it would be 13 % less.
  EXPECT_NEAR(mean_context(column_batches(run, engine, server.server)) / mean_context(simulated), 1,
              0.06);
}

TEST(Calibration, OutputsTellHowSoonTheyStop) {
  StepProfile server = the_server();
  server.server.mean_tokens_to_stop = 500;
  std::vector<MeasuredRun> runs{run_of(8, 8, 5, 900), run_of(8, 8, 8, 600)};
  for (MeasuredRun& run : runs) {
    run.measured =
        simulate_run(run, with_profile(engine_of(run), server), server.server, kSeed).measures;
  }
  // 4,800 outputs each of mean 165 +- 160: 1.4 % of the mean, of which a stop at 500 takes a sixth.
  EXPECT_NEAR(mean_tokens_to_stop(runs).value, server.server.mean_tokens_to_stop, 90);
  for (MeasuredRun& run : runs) run.mean_output_tokens /= 2;
  EXPECT_EQ(mean_tokens_to_stop(runs).value, 0);
  EXPECT_FALSE(mean_tokens_to_stop(runs).is_identified);
}

TEST(Calibration, OneNumberOfSlotsDoesNotTellWhatASlotCosts) {
  const std::vector<MeasuredRun> runs = runs_of_the_server(
      {run_of(32, 8, 1), run_of(32, 8, 10), run_of(32, 16, 5), run_of(32, 32, 4)});
  const Calibration c = calibrate(runs, engine_of, {.num_rounds = 1});
  for (const char* name : {"lora_block_ns.shrink", "lora_block_ns.expand", "load.copy_ns"}) {
    EXPECT_FALSE(term_of(c, name).is_identified) << name;
    EXPECT_EQ(term_of(c, name).value, term_of(c, name).prior) << name;
  }
}

TEST(Calibration, FoldsAreWholeSweepsAndPredictWhatTheyHaveNotSeen) {
  std::vector<MeasuredRun> runs = runs_of_the_server(
      {run_of(8, 8, 1), run_of(32, 8, 1), run_of(16, 16, 3), run_of(32, 16, 3), run_of(32, 32, 2),
       run_of(64, 32, 2), run_of(48, 48, 2), run_of(64, 48, 2)});
  const CalibrationOptions options{.num_rounds = 1};
  const Calibration all = calibrate(runs, engine_of, options);
  const CrossValidation folds = cross_validate(runs, engine_of, options, all, 2);
  EXPECT_THAT(folds.fold, testing::ElementsAre(0, 0, 1, 1, 0, 0, 1, 1));
  ASSERT_EQ(folds.profiles.size(), 2u);
  for (size_t i = 0; i < runs.size(); ++i) {
    EXPECT_GT(folds.predicted[i].num_seeds, 0) << i;
    EXPECT_NEAR(folds.predicted[i].measures.completed / runs[i].measured.completed, 1, 0.3) << i;
  }
  // A run that is measured wrong changes every fit but that of its own fold.
  runs[0].measured.mean_tpot_ms *= 1.5;
  const CrossValidation again = cross_validate(runs, engine_of, options, all, 2);
  EXPECT_EQ(again.profiles[0], folds.profiles[0]);
  EXPECT_NE(again.profiles[1], folds.profiles[1]);
}

std::string refusal(const std::vector<MeasuredRun>& runs) {
  try {
    calibrate(runs, engine_of, {.num_rounds = 1});
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(Calibration, RefusesRunsThatTellNothing) {
  std::vector<MeasuredRun> runs(4, run_of(8, 8, 1));
  for (MeasuredRun& run : runs) run.measured.mean_tpot_ms = 20;
  runs[3].measured.mean_tpot_ms = RunMeasures::kUnknown;
  EXPECT_EQ(refusal(runs),
            "3 runs with a measured TPOT, too few to fit; give at least 4, of different loads and "
            "max_loras");
  runs[2].place = "runs.csv:4";
  runs[2].model = "Qwen2.5-7B";
  EXPECT_EQ(refusal(runs),
            "runs.csv:4: its model is Qwen2.5-7B, that of runs.csv:2 is Llama-3.1-8B; calibrate "
            "one server at a time");
  EXPECT_EQ(refusal({}),
            "0 runs with a measured TPOT, too few to fit; give at least 4, of "
            "different loads and max_loras");
}

TEST(Calibration, RefusesMoreFoldsThanSweeps) {
  const std::vector<MeasuredRun> runs(4, run_of(8, 8, 1));
  try {
    cross_validate(runs, engine_of, {}, {}, 2);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "--folds: 2 folds, but the runs are of 1 sweep; lower it; runs of one sweep "
                 "differ in max_loras alone");
  }
}

}  // namespace
}  // namespace loratory::sim
