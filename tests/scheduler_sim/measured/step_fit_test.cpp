// Steps that an engine recorded, the plan that makes them, and the profile that is fitted to them.
#include "scheduler_sim/measured/step_fit.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/engine/engine_loop.hpp"
#include "scheduler_sim/executors/cost_executor.hpp"
#include "scheduler_sim/measured/profiling_plan.hpp"
#include "scheduler_sim/workload/random.hpp"

namespace loratory::sim {
namespace {

using testing::HasSubstr;

StepProfile known_profile() {
  StepProfile p;
  p.constant_ns = 6e6;
  p.term("num_seqs") = 8e3;
  p.term("decode_context_tokens") = 60;
  p.term("num_prefill_tokens") = 2e3;
  p.term("prefill_pairs") = 1.2;
  p.term("prefill_step") = 4e5;
  p.term("lora_step") = 5e5;
  p.term("num_adapters") = 2e4;
  p.term("lora_rank_tokens") = 90;
  p.above_tokens = 300;
  p.above_ns_per_token = 2e4;
  return p;
}

// Runs the plan on an engine whose steps take what `model` says, and records them.
std::vector<RecordedStep> record(const ProfilingPlan& plan, const StepTimeModel& model,
                                 const SchedulerConfig& config) {
  CostExecutor executor(model, LoadCosts{});
  StepRecorder recorder(plan.first_held_id);
  EngineLoop loop(config, executor, {}, &recorder);
  std::vector<Uid> uids;
  loop.call(0, [&](Scheduler& s, int64_t now_ns) {
    for (const TraceAdapter& a : plan.trace.adapters) {
      uids.push_back(s.register_adapter(a.name, a.rank, 1 << 20, false, now_ns).uid);
    }
  });
  int64_t burst = -1, time_ns = 0;
  for (size_t i = 0; i < plan.trace.requests.size(); ++i) {
    const TraceRequest& r = plan.trace.requests[i];
    if (r.arrival_ns != burst) {
      while (loop.advance()) {
      }
      burst = r.arrival_ns;
      time_ns = loop.now_ns() + 1'000'000'000;
    }
    RequestSpec spec{
        .id = i, .num_prompt_tokens = r.prompt_tokens, .max_new_tokens = r.output_tokens};
    if (r.adapter != kBaseModel) spec.adapter = uids[r.adapter];
    loop.call(time_ns, [&](Scheduler& s, int64_t now_ns) {
      EXPECT_EQ(s.submit(spec, now_ns), SubmitStatus::ok);
    });
  }
  while (loop.advance()) {
  }
  return recorder.steps();
}

SchedulerConfig engine_of(const ProfilingLimits& limits) {
  SchedulerConfig config;
  config.max_num_seqs = uint32_t(limits.max_num_seqs);
  config.max_num_batched_tokens = 1024;
  config.max_model_len = uint32_t(limits.max_model_len);
  config.residency.max_loras = config.residency.max_cpu_loras = limits.max_loras;
  config.num_blocks = 1 << 14;
  return config;
}

constexpr ProfilingLimits kLimits{.max_num_seqs = 64, .max_model_len = 2048, .max_loras = 4};

TEST(ProfilingPlan, HasStepsOfAllSizesAndKeepsTheLimits) {
  const ProfilingPlan plan = profiling_plan(kLimits, 1);
  const StepProfile profile = known_profile();
  const auto steps = record(plan, ProfileModel(profile), engine_of(kLimits));
  std::set<int64_t> rows, adapters;
  int64_t most_tokens = 0, longest = 0;
  for (const RecordedStep& step : steps) {
    const BatchShape& s = step.shape;
    if (step.is_held) continue;
    if (s.num_prefill_tokens == 0) rows.insert(s.num_seqs);
    adapters.insert(s.num_adapters);
    most_tokens = std::max(most_tokens, s.num_tokens);
    longest = std::max(longest, s.longest_decode_context);
  }
  EXPECT_THAT(rows, testing::IsSupersetOf({1, 2, 4, 8, 16, 32, 64}));
  EXPECT_THAT(adapters, testing::IsSupersetOf({0, 1, 4}));
  EXPECT_EQ(most_tokens, 1024);
  EXPECT_GT(longest, kLimits.max_model_len / 2);
  EXPECT_GT(plan.trace.requests.size(), plan.first_held_id);
  for (const TraceRequest& r : plan.trace.requests) {
    EXPECT_GE(r.prompt_tokens, 1u);
    EXPECT_GE(r.output_tokens, 1u);
    EXPECT_LE(int64_t{r.prompt_tokens} + r.output_tokens, kLimits.max_model_len);
  }
}

TEST(ProfilingPlan, FitsEnginesOfAnySize) {
  for (const int64_t seqs : {1, 3, 1000}) {
    for (const int64_t length : {2, 40, 100'000}) {
      const ProfilingLimits limits{.max_num_seqs = seqs, .max_model_len = length, .max_loras = 1};
      for (const TraceRequest& r : profiling_plan(limits, 7).trace.requests) {
        ASSERT_GE(r.prompt_tokens, 1u);
        ASSERT_LE(int64_t{r.prompt_tokens} + r.output_tokens, length);
      }
    }
  }
}

// What a step took is what the model says, whether it comes behind another or out of idleness; and
// those of held bursts are held.
TEST(StepRecorder, RecordsWhatEachStepTook) {
  const ProfilingPlan plan = profiling_plan(kLimits, 1);
  const ProfileModel model(known_profile());
  const auto steps = record(plan, model, engine_of(kLimits));
  int64_t num_held = 0;
  for (const RecordedStep& step : steps) {
    ASSERT_EQ(step.ns, model.step_ns(step.shape));
    num_held += step.is_held;
  }
  EXPECT_GT(num_held, 50);
  EXPECT_TRUE(steps.back().is_held);
  EXPECT_FALSE(steps.front().is_held);
}

TEST(StepFit, FindsTheTermsOfAKnownEngine) {
  const StepProfile truth = known_profile();
  const auto steps = record(profiling_plan(kLimits, 1), ProfileModel(truth), engine_of(kLimits));
  const StepFit fit = fit_steps(steps, {});
  EXPECT_LT(fit.held.median, 0.01);
  EXPECT_LT(fit.held.p95, 0.02);
  EXPECT_LT(std::fabs(fit.held.total), 0.01);
  EXPECT_NEAR(fit.profile.constant_ns / truth.constant_ns, 1, 0.03);
  EXPECT_NEAR(fit.profile.term("decode_context_tokens") / 60, 1, 0.05);
  // Beyond the knee nearly all tokens are of prompts, so the two terms are told together.
  EXPECT_NEAR((fit.profile.above_ns_per_token + fit.profile.term("num_prefill_tokens")) / 2.2e4, 1,
              0.05);
  EXPECT_GE(fit.profile.above_tokens, 256);  // the plan's steps of prompts around 300 tokens
  EXPECT_LE(fit.profile.above_tokens, 342);
  EXPECT_NEAR(fit.profile.term("lora_step") / 5e5, 1, 0.1);
}

// Five percent of noise on every step: a held trace as a whole is a tenth of that off.
TEST(StepFit, NoiseEvensOut) {
  auto steps =
      record(profiling_plan(kLimits, 1), ProfileModel(known_profile()), engine_of(kLimits));
  const RandomStream noise(3, 99);
  for (size_t i = 0; i < steps.size(); ++i) {
    const double gauss =
        std::sqrt(-2 * std::log(noise.unit(i))) * std::cos(2 * M_PI * noise.unit(i, 1));
    steps[i].ns = int64_t(double(steps[i].ns) * std::exp(0.05 * gauss));
  }
  const StepFit fit = fit_steps(steps, {});
  // The median of a normal variable's size is 0.674 sigma.
  EXPECT_NEAR(fit.held.median, 0.674 * 0.05, 0.01);
  EXPECT_LT(std::fabs(fit.held.total), 4 * 0.05 / std::sqrt(double(fit.held.num_steps)));
}

// An engine without a knee and without adapters' cost: those terms are 0, and not made up.
TEST(StepFit, AbsentTermsAreNotMadeUp) {
  StepProfile truth;
  truth.constant_ns = 1e6;
  truth.term("num_prefill_tokens") = 1e4;
  const auto steps = record(profiling_plan(kLimits, 1), ProfileModel(truth), engine_of(kLimits));
  const StepFit fit = fit_steps(steps, {});
  EXPECT_LT(fit.held.p95, 0.01);
  EXPECT_LT(fit.profile.term("lora_step"), 0.01 * truth.constant_ns);
  EXPECT_LT(fit.profile.term("num_adapters") * 4, 0.01 * truth.constant_ns);
}

TEST(StepFit, TooFewStepsOrNoneHeldAreErrors) {
  auto steps =
      record(profiling_plan(kLimits, 1), ProfileModel(known_profile()), engine_of(kLimits));
  const auto message = [&](std::span<const RecordedStep> some) -> std::string {
    try {
      fit_steps(some, {});
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(std::span(steps).first(10)),
            "calibrate: 10 recorded steps are too few to fit; give 50 or more");
  for (RecordedStep& step : steps) step.is_held = false;
  EXPECT_THAT(message(steps), HasSubstr("nothing can judge the fit"));
}

TEST(StepFit, FiguresThatNoTermsFitAreAnError) {
  auto steps =
      record(profiling_plan(kLimits, 1), ProfileModel(known_profile()), engine_of(kLimits));
  std::ranges::find(steps, false, &RecordedStep::is_held)->shape.num_seqs = INT32_MAX;
  try {
    fit_steps(steps, {});
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "calibrate: no terms fit figures that are so far apart; leave out rows that were "
                 "not measured");
  }
}

TEST(RecordedSteps, AreReadAsTheyWereWritten) {
  const auto steps =
      record(profiling_plan(kLimits, 1), ProfileModel(known_profile()), engine_of(kLimits));
  std::ostringstream text;
  write_recorded_steps(text, steps);
  const auto read = read_recorded_steps_from(text.str(), "steps.csv");
  ASSERT_EQ(read.size(), steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(read[i].shape, steps[i].shape) << i;
    EXPECT_EQ(read[i].ns, steps[i].ns) << i;
    EXPECT_EQ(read[i].is_held, steps[i].is_held) << i;
  }
}

TEST(RecordedSteps, BadFilesSayWhere) {
  const std::string header =
      "held,num_seqs,num_tokens,num_prefill_tokens,num_sampled,decode_context_tokens,"
      "prefill_context_tokens,prefill_pairs,num_lora_tokens,lora_rank_tokens,num_adapters,sum_rank,"
      "max_rank,longest_decode_context,longest_prefill,rows_changed,step_ns\n";
  const auto message = [](const std::string& text) -> std::string {
    try {
      read_recorded_steps_from(text, "s.csv");
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(header + "0,1,1,0,1,9,0,0,0,0,0,0,0,9,0,0,5\n"), "");
  EXPECT_EQ(message(""), "s.csv: has no steps; record some with --executor");
  EXPECT_EQ(message(header), "s.csv: has no steps; record some with --executor");
  EXPECT_EQ(
      message("num_rows\n"),
      "s.csv:1:1: 'num_rows' is no column of recorded steps; traces/SCHEMA.md has the columns");
  EXPECT_THAT(message("held,num_seqs\n"), HasSubstr("s.csv:1:1: column num_tokens is missing"));
  EXPECT_THAT(message("held,held\n"), HasSubstr("s.csv:1:6: column held appears twice"));
  EXPECT_EQ(message(header + "0,1,x,0,1,9,0,0,0,0,0,0,0,9,0,0,5\n"),
            "s.csv:2:5: num_tokens must be a whole number from 0 to 2147483647");
  EXPECT_THAT(message(header + "0,1,1,0,1,-9,0,0,0,0,0,0,0,9,0,0,5\n"), HasSubstr("s.csv:2:11"));
  EXPECT_EQ(message(header + "0,9007199254740993,1,0,1,9,0,0,0,0,0,0,0,9,0,0,5\n"),
            "s.csv:2:3: num_seqs must be a whole number from 0 to 2147483647");
  EXPECT_EQ(message(header + "2,1,1,0,1,9,0,0,0,0,0,0,0,9,0,0,5\n"),
            "s.csv:2:1: held must be a whole number from 0 to 1");
  EXPECT_THAT(message(header + "0,1,1,0,1,9,0,0,0,0,0,0,0,9,0,2,5\n"),
              HasSubstr("s.csv:2:31: rows_changed must be a whole number from 0 to 1"));
  EXPECT_EQ(message("\xef\xbb\xbf" + header + "0,1,1,0,1,9,0,0,0,0,0,0,0,9,0,0,5\n"), "");
  EXPECT_EQ(message(header + "0,1,1,0,1,9,0,0,0,0,0,0,0,9,0,0,5"),
            "s.csv:2:34: the last row has no newline and may be cut off; append a newline if the "
            "file is whole");
  EXPECT_THAT(message(header + "0,1,1\n"), HasSubstr("3 cells, but the header has 17"));
  EXPECT_THAT(message(header + "0,0,1,0,1,9,0,0,0,0,0,0,0,9,0,0,5\n"), HasSubstr("without rows"));
  EXPECT_THAT(message(header + "0,1,1,0,1,9,0,0,0,0,0,0,0,9,0,0,0\n"), HasSubstr("took no time"));
}

}  // namespace
}  // namespace loratory::sim
