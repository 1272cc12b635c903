#include "scheduler_sim/measured/closed_loop.hpp"

#include <gtest/gtest.h>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/measured/simulate_run.hpp"
#include "tests/scheduler_sim/sizing/small_engine.hpp"

namespace loratory::sim {
namespace {

// So many requests in flight, each of 100 prompt tokens and `output` others. Steps take 10 ms.
MeasuredRun closed_loop(int64_t concurrency, int64_t num_requests, double output) {
  MeasuredRun run;
  run.adapters = {{0, 0}};
  run.mean_prompt_tokens = 100;
  run.mean_output_tokens = output;
  run.client.concurrency = concurrency;
  run.client.num_requests = num_requests;
  return run;
}

TEST(SimulateRun, RefusesMeansThatShareGptCannotHave) {
  MeasuredRun run = closed_loop(1, 1, 200);
  run.place = "runs.csv:2";
  run.lengths = LengthKind::sharegpt;
  run.mean_prompt_tokens = 3000;
  try {
    simulate_run(run, engine(), {}, 1);
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "runs.csv:2: ShareGPT's conversations have no mean of 3000 tokens of prompt and "
                 "200 of output; give other means, or constant lengths");
  }
}

// Both end at 30 ms, and the third is there 0.1 ms later.
TEST(ClosedLoop, TheNextRequestComesWhenOneHasEnded) {
  const SimulatedRun run = simulate_run(closed_loop(2, 3, 3), engine(), {}, 1);
  EXPECT_EQ(run.num_sent, 3);
  EXPECT_DOUBLE_EQ(run.measures.completed, 3);
  EXPECT_DOUBLE_EQ(run.measures.mean_ttft_ms, 10);
  EXPECT_DOUBLE_EQ(run.measures.mean_tpot_ms, 10);
  EXPECT_NEAR(run.measures.output_tps, 9 / 0.0601, 1e-9);
}

// One prompt a step. The first two have their tokens after 10 and 20 ms. From then on a request
// comes just after the step of the one before it has begun, waits for it, and has its own: the
// order of the start stays.
TEST(ClosedLoop, RequestsThatFollowEachOtherGoOnDoingSo) {
  EngineSpec spec = engine();
  spec.scheduler.max_num_seqs = 2;
  spec.scheduler.max_num_batched_tokens = 101;
  const SimulatedRun run = simulate_run(closed_loop(2, 6, 3), spec, {}, 1);
  EXPECT_NEAR(run.measures.mean_ttft_ms, (10 + 20 + 4 * 19.9) / 6, 1e-9);
}

// [0 ms, 2 ms) in the front end before the scheduler, or after it: the client sees both.
TEST(ClosedLoop, TheFrontEndIsOnTheWay) {
  const SimulatedRun run = simulate_run(closed_loop(1, 2, 3), engine(), {.frontend_ms = 2}, 1);
  EXPECT_DOUBLE_EQ(run.measures.mean_ttft_ms, 12);
  EXPECT_NEAR(run.measures.output_tps, 6 / 0.062, 1e-9);
}

TEST(ClosedLoop, TheRunEndsWithItsTime) {
  MeasuredRun run = closed_loop(3, 0, 3);
  run.client.duration_s = 0.1;  // three rounds of 30.1 ms, and part of one
  const SimulatedRun out = simulate_run(run, engine(), {}, 1);
  EXPECT_EQ(out.num_sent, 12);
  EXPECT_DOUBLE_EQ(out.measures.completed, 9);
  EXPECT_DOUBLE_EQ(out.measures.output_tps, 270);
}

TEST(ClosedLoop, ARequestThatIsRefusedHasEnded) {
  EngineSpec spec = engine();
  spec.scheduler.max_model_len = 50;
  const SimulatedRun run = simulate_run(closed_loop(2, 5, 3), spec, {}, 1);
  EXPECT_EQ(run.num_sent, 5);
  EXPECT_DOUBLE_EQ(run.measures.completed, 0);
}

TEST(ClosedLoop, JumpsOverNoEnd) {
  MeasuredRun run = closed_loop(7, 100, 40);
  run.adapters = {{3, 0}};
  run.max_loras = 2;
  run.max_cpu_loras = 3;
  run.max_lora_rank = 16;
  run.ranks = {16};
  EngineSpec fast = engine(), stepwise = engine();
  fast.scheduler.max_num_batched_tokens = stepwise.scheduler.max_num_batched_tokens = 256;
  stepwise.fast = false;
  const RunMeasures a = simulate_run(run, fast, {}, 1).measures;
  const RunMeasures b = simulate_run(run, stepwise, {}, 1).measures;
  EXPECT_DOUBLE_EQ(a.completed, 100);
  EXPECT_DOUBLE_EQ(a.mean_ttft_ms, b.mean_ttft_ms);
  EXPECT_DOUBLE_EQ(a.output_tps, b.output_tps);
}

}  // namespace
}  // namespace loratory::sim
