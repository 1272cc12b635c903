// The loop with an executor of its own: nothing of it knows which executors there are.
#include "scheduler_sim/engine/engine_loop.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <deque>
#include <map>
#include <string>

namespace loratory::sim {
namespace {

using testing::ElementsAre;
using Phase = Moment::Phase;

// A fourth executor: a load takes 5 ns, a copy 3 and a step 10, every row samples its length, and
// all of it is written down. There is one of each at a time here, and a step more behind a step.
class DiaryExecutor final : public Executor {
 public:
  void begin_load(const LoadStart& load, int64_t now_ns) override {
    begin(Completion::Kind::load, now_ns + 5, fmt::format("load {}", load.uid), load.uid);
  }
  void begin_copy(const CopyStart& copy, int64_t now_ns) override {
    begin(Completion::Kind::copy, now_ns + 3, fmt::format("copy {}", copy.uid), copy.uid);
  }
  void begin_step(const StepPlan& plan, const Scheduler&, int64_t now_ns) override {
    const int64_t start_ns = step_ends_.empty() ? now_ns : step_ends_.back();
    step_ends_.push_back(start_ns + 10);
    diary.push_back(fmt::format("step of {}", plan.rows.size()));
    if (step_ends_.size() > 1) diary.back() += " ahead";
  }
  Completion next(int64_t until_ns) override {
    Completion first;
    if (!step_ends_.empty()) first = {step_ends_.front(), Completion::Kind::step};
    for (const auto& [kind, work] : under_way_) {
      if (work.first <= first.time_ns) first = {work.first, kind};
    }
    return first.time_ns <= until_ns ? first : Completion{};
  }
  LoadEnd end_load(int64_t) override { return {end(Completion::Kind::load), loads_succeed}; }
  Uid end_copy(int64_t) override { return end(Completion::Kind::copy); }
  StepResult end_step(const StepPlan& plan, const Scheduler&) override {
    step_ends_.pop_front();
    sampled_.clear();
    for (const StepRow& row : plan.rows) {
      if (row.samples) sampled_.push_back(int32_t(row.num_computed + row.num_tokens));
    }
    return {sampled_};
  }
  void evicted_from_cpu(Uid uid) override { diary.push_back(fmt::format("evicted {}", uid)); }
  void unloaded(Uid uid) override { diary.push_back(fmt::format("unloaded {}", uid)); }

  std::vector<std::string> diary;
  bool loads_succeed = true;

 private:
  void begin(Completion::Kind kind, int64_t end_ns, const std::string& entry, Uid uid = kBaseUid) {
    ASSERT_TRUE(under_way_.try_emplace(kind, end_ns, uid).second);
    diary.push_back(entry);
  }
  Uid end(Completion::Kind kind) { return under_way_.extract(kind).mapped().second; }

  std::map<Completion::Kind, std::pair<int64_t, Uid>> under_way_;
  std::deque<int64_t> step_ends_;
  std::vector<int32_t> sampled_;
};

struct Log : DecisionSink {
  void on_decision(const Decision& d) override {
    all.push_back(fmt::format("{} {}", d.time_ns, name_of(d)));
  }
  std::vector<std::string> all;
};

struct Steps : StepObserver {
  void on_step_end(const Scheduler& scheduler, const StepPlan& plan, int64_t start_ns,
                   int64_t now_ns) override {
    spans.push_back(fmt::format("{} to {}", start_ns, now_ns));
    generated_before.push_back(scheduler.request(plan.rows[0].request).num_generated);
  }
  void on_commit(const Scheduler&, int64_t) override { ++num_commits; }
  std::vector<std::string> spans;
  std::vector<uint32_t> generated_before;
  int num_commits = 0;
};

class EngineLoopTest : public testing::Test {
 protected:
  static SchedulerConfig config(LoadMode mode) {
    SchedulerConfig c;
    c.residency = {.max_loras = 1, .max_cpu_loras = 1, .num_load_workers = 1};
    c.num_blocks = 100;
    c.load_mode = mode;
    return c;
  }
  EngineLoop& start(LoadMode mode = LoadMode::overlap, StepsAhead ahead = StepsAhead::none) {
    loop_ = std::make_unique<EngineLoop>(config(mode), executor_, std::vector<DecisionSink*>{&log_},
                                         &steps_, ahead);
    return *loop_;
  }
  Uid add_adapter(const std::string& name) {
    return loop_->call(loop_->now_ns(), [&](Scheduler& s, int64_t now_ns) {
      return s.register_adapter(name, 8, 1, /*replace=*/false, now_ns).uid;
    });
  }
  SubmitStatus submit(int64_t time_ns, uint64_t id, Uid adapter, uint32_t max_new) {
    return loop_->call(time_ns, [&](Scheduler& s, int64_t now_ns) {
      RequestSpec spec{.id = id, .adapter = adapter};
      spec.num_prompt_tokens = 3;
      spec.max_new_tokens = max_new;
      return s.submit(spec, now_ns);
    });
  }
  void run() {
    while (loop_->advance()) {
    }
  }

  DiaryExecutor executor_;
  Log log_;
  Steps steps_;
  std::unique_ptr<EngineLoop> loop_;
};

TEST_F(EngineLoopTest, AnyExecutorIsDriven) {
  start();
  const Uid poet = add_adapter("poet");
  EXPECT_EQ(submit(0, 1, poet, 2), SubmitStatus::ok);
  EXPECT_EQ(submit(0, 2, kBaseUid, 1), SubmitStatus::ok);
  run();
  EXPECT_THAT(executor_.diary,
              ElementsAre("load 1", "step of 1", "copy 1", "step of 1", "step of 1"));
  EXPECT_THAT(log_.all, ElementsAre("0 arrival", "0 load", "0 arrival", "0 admission",
                                    "5 load_done", "5 copy", "8 copy_done", "10 first_token",
                                    "10 finish", "10 admission", "20 first_token", "30 finish"));
  EXPECT_THAT(steps_.spans, ElementsAre("0 to 10", "10 to 20", "20 to 30"));
  EXPECT_THAT(steps_.generated_before, ElementsAre(0U, 0U, 1U));  // the commit comes after
  EXPECT_EQ(steps_.num_commits, 3);
  EXPECT_EQ(loop_->now_ns(), 30);
  EXPECT_EQ(loop_->scheduler().num_live(), 0);
}

TEST_F(EngineLoopTest, TheExecutorsTokensEndARequest) {
  start();
  const std::vector<int32_t> prompt{9, 9, 9}, stop{5};
  loop_->call(0, [&](Scheduler& s, int64_t now_ns) {
    RequestSpec spec{.id = 1, .num_prompt_tokens = 3, .max_new_tokens = 50};
    spec.tokens = prompt;
    spec.stop_tokens = stop;
    s.submit(spec, now_ns);
  });
  run();
  EXPECT_EQ(loop_->now_ns(), 30);  // it samples 3, 4 and 5
}

TEST_F(EngineLoopTest, ABlockingStepBeginsWithItsLastAdapter) {
  start(LoadMode::blocking);
  submit(0, 1, add_adapter("poet"), 1);
  run();
  EXPECT_THAT(executor_.diary, ElementsAre("load 1", "copy 1", "step of 1"));
  EXPECT_THAT(steps_.spans, ElementsAre("8 to 18"));
}

// [7.17] The next step is planned when a step begins, and starts when that one ends.
TEST_F(EngineLoopTest, AStepAheadBeginsWhileOneRuns) {
  start(LoadMode::overlap, StepsAhead::one);
  submit(0, 1, kBaseUid, 3);
  EXPECT_TRUE(loop_->advance());
  EXPECT_TRUE(loop_->advance());
  EXPECT_EQ(loop_->now_ns(), 0);
  ASSERT_NE(loop_->step(1), nullptr);
  EXPECT_EQ(loop_->step(0)->step + 1, loop_->step(1)->step);
  submit(4, 2, kBaseUid, 1);
  run();
  EXPECT_THAT(executor_.diary, ElementsAre("step of 1", "step of 1 ahead", "step of 2 ahead"));
  EXPECT_THAT(steps_.spans, ElementsAre("0 to 10", "10 to 20", "20 to 30"));
  EXPECT_EQ(log_.all.back(), "30 finish");
}

TEST_F(EngineLoopTest, AStopTokenLeavesAStepThatCountsForNothing) {
  start(LoadMode::overlap, StepsAhead::one);
  const std::vector<int32_t> prompt{9, 9, 9}, stop{5};
  loop_->call(0, [&](Scheduler& s, int64_t now_ns) {
    RequestSpec spec{.id = 1, .num_prompt_tokens = 3, .max_new_tokens = 50};
    spec.tokens = prompt;
    spec.stop_tokens = stop;
    s.submit(spec, now_ns);
  });
  run();
  EXPECT_EQ(log_.all.back(), "30 finish");  // it samples 3, 4 and 5
  EXPECT_EQ(loop_->now_ns(), 40);
  EXPECT_EQ(loop_->scheduler().blocks().num_referenced(), 0U);
}

// A blocking step that waits for its adapter begins alone, and none is planned behind it.
TEST_F(EngineLoopTest, ABlockingStepAheadWaitsForItsAdapter) {
  start(LoadMode::blocking, StepsAhead::one);
  const Uid poet = add_adapter("poet");
  submit(0, 1, kBaseUid, 3);
  EXPECT_TRUE(loop_->advance());
  submit(0, 2, poet, 1);
  run();
  EXPECT_THAT(executor_.diary,
              ElementsAre("step of 1", "load 1", "copy 1", "step of 2 ahead", "step of 1 ahead"));
  EXPECT_THAT(steps_.spans, ElementsAre("0 to 10", "10 to 20", "20 to 30"));
}

// Of one nanosecond: arrivals, what ends, operations, the plan.
TEST_F(EngineLoopTest, AdvanceStopsBeforeTheMoment) {
  start();
  submit(0, 1, kBaseUid, 9);
  EXPECT_FALSE(loop_->advance({0, Phase::plan}));
  EXPECT_EQ(loop_->step(), nullptr);
  EXPECT_TRUE(loop_->plans_next());
  EXPECT_TRUE(loop_->advance({1, Phase::arrivals}));
  EXPECT_NE(loop_->step(), nullptr);
  EXPECT_FALSE(loop_->advance({10, Phase::completions}));
  EXPECT_EQ(loop_->now_ns(), 0);
  EXPECT_TRUE(loop_->advance({10, Phase::operations}));
  EXPECT_EQ(loop_->now_ns(), 10);
  EXPECT_EQ(loop_->step(), nullptr);
  EXPECT_FALSE(loop_->advance({10, Phase::plan}));
  loop_->call(10, [](Scheduler& s, int64_t now_ns) { s.abort(1, now_ns); });
  EXPECT_FALSE(loop_->advance());  // the plan that was due is empty
  EXPECT_EQ(log_.all.back(), "10 finish");
}

TEST_F(EngineLoopTest, TheExecutorHearsWhatIsLetGo) {
  start();
  const Uid poet = add_adapter("poet"), lawyer = add_adapter("lawyer");
  submit(0, 1, poet, 1);
  run();
  submit(loop_->now_ns(), 2, lawyer, 1);
  run();
  loop_->call(loop_->now_ns(),
              [](Scheduler& s, int64_t now_ns) { s.unload_adapter("poet", false, now_ns); });
  EXPECT_THAT(executor_.diary, ElementsAre("load 1", "copy 1", "step of 1", "evicted 1", "load 2",
                                           "copy 2", "step of 1", "unloaded 1"));
}

TEST_F(EngineLoopTest, AFailedLoadEndsItsRequests) {
  start();
  executor_.loads_succeed = false;
  submit(0, 1, add_adapter("poet"), 1);
  run();
  EXPECT_THAT(log_.all, ElementsAre("0 arrival", "0 load", "5 load_failure", "5 load",
                                    "10 load_failure", "10 finish"));
}

TEST_F(EngineLoopTest, TimeDoesNotRunBackwards) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  start();
  submit(7, 1, kBaseUid, 1);
  EXPECT_DEATH(submit(6, 2, kBaseUid, 1), "time does not run backwards");
}

}  // namespace
}  // namespace loratory::sim
