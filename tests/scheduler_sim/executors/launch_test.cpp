// What the executor checks before it runs a step.
#include <gtest/gtest.h>

#include "fuzz/support/engine_case.hpp"

namespace loratory::sim {
namespace {

using reference::Model;

class LaunchDeathTest : public testing::Test {
 protected:
  LaunchDeathTest()
      : model_(random_model(reference::tiny_model_config(), 1)), engine_(model_, config(), 4) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // OpenMP has started threads
    for (uint64_t seed : {1, 2}) engine_.add_adapter(random_adapter(model_.config, seed));
  }

  static SchedulerConfig config() {
    SchedulerConfig c;
    c.residency.max_loras = 2;
    c.num_blocks = 50;
    c.pack = PackMode::off;
    return c;
  }
  void submit(uint64_t id, const std::string& adapter) {
    EngineRequest r;
    r.id = id;
    r.adapter = adapter;
    r.prompt = {1, 2, 3};
    r.params.max_new_tokens = 4;
    ASSERT_EQ(engine_.submit(r), SubmitStatus::ok);
  }
  std::string problem(const StepPlan& plan) {
    return engine_.runner.problem(plan, engine_.scheduler);
  }

  Model model_;
  StepByHand engine_;
};

TEST_F(LaunchDeathTest, ThePlanCarriesTheGeneration) {  // [2.12]
  submit(1, "2");
  submit(2, "");
  const StepPlan& plan = engine_.plan();  // the base request alone: adapter 2 is on its way
  ASSERT_EQ(plan.rows.size(), 1U);
  EXPECT_EQ(plan.rows[0].generation, 0U);
  engine_.scheduler.commit({std::vector<int32_t>{5}}, 10);
  EXPECT_TRUE(engine_.step());
  const StepPlan& both = engine_.plan();
  ASSERT_EQ(both.rows.size(), 2U);
  EXPECT_EQ(both.rows[1].slot, 0);
  EXPECT_EQ(both.rows[1].generation, engine_.scheduler.residency().slot_generation(0));
  EXPECT_EQ(engine_.runner.slot(0), (reference::SlotContent{2, both.rows[1].generation}));
  EXPECT_EQ(problem(both), "");
}

// [2.12] P32: an adapter in its slot again is not the one that the plan was made for.
TEST_F(LaunchDeathTest, AnotherGenerationIsRefused) {
  submit(1, "1");
  const StepPlan& plan = engine_.plan();
  engine_.runner.end_copy(1, 0, 2);
  EXPECT_EQ(problem(plan), "slot 0 holds adapter 1 of generation 2, the plan says 1 of 1");
  EXPECT_DEATH(engine_.runner.run(plan, engine_.scheduler), "slot 0 holds adapter 1 of gen");
}

TEST_F(LaunchDeathTest, AHalfFilledSlotIsRefused) {  // [2.10] [5.24] P42
  submit(1, "1");
  const StepPlan& plan = engine_.plan();
  engine_.runner.begin_copy(0);
  EXPECT_EQ(problem(plan), "slot 0 holds adapter 0 of generation 0, the plan says 1 of 1");
}

// [2.10]: never the base model in its stead.
TEST_F(LaunchDeathTest, ARowWithoutSlotIsRefused) {
  submit(1, "1");
  StepPlan plan = engine_.plan();
  plan.rows[0].slot = kNoSlot;
  EXPECT_EQ(problem(plan), "adapter 1 has slot -1");
  plan.rows[0].slot = 2;
  EXPECT_EQ(problem(plan), "adapter 1 has slot 2");
}

TEST_F(LaunchDeathTest, OnlyWhatIsOnTheCpuIsCopied) {  // [5.6]
  EXPECT_DEATH(engine_.runner.end_copy(1, 0, 1), "on the CPU");
  engine_.runner.load(1);
  engine_.runner.drop_from_cpu(1);
  EXPECT_FALSE(engine_.runner.is_on_cpu(1));
  EXPECT_DEATH(engine_.runner.end_copy(1, 0, 1), "on the CPU");
  EXPECT_DEATH(engine_.runner.load(3), "only a registered adapter");
}

// [2.16]: one token of one request, padded to 8; then without padding.
TEST_F(LaunchDeathTest, PaddingChangesNothing) {
  std::vector<reference::Matrix<float>> logits;
  for (const int64_t multiple : {1, 8}) {
    Scheduler scheduler(config());
    ModelRunner runner(model_, config(), {.max_lora_rank = 4, .token_multiple = multiple});
    const std::vector<int32_t> prompt{1, 2, 3};
    RequestSpec spec;
    spec.num_prompt_tokens = 3;
    spec.tokens = prompt;
    spec.max_new_tokens = 1;
    scheduler.submit(spec, 0);
    const auto sampled = runner.run(scheduler.plan(0), scheduler);
    ASSERT_EQ(sampled.size(), 1U);
    logits.push_back(runner.logits());
  }
  EXPECT_EQ(logits[0], logits[1]);
  EXPECT_FALSE(logits[0].hasNaN());
}

}  // namespace
}  // namespace loratory::sim
