#include "scheduler_sim/serving/serving_run.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "fuzz/support/random_model.hpp"
#include "reference/base/input_error.hpp"
#include "scheduler_sim/serving/clocked_reference_executor.hpp"

namespace loratory::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Whatever is done takes 100 ns.
class SlowClock final : public Clock {
 public:
  int64_t now_ns() override { return time_ns_ += 100; }
  void wait_until(int64_t time_ns) override {
    ASSERT_NE(time_ns, kNever);
    if (time_ns > time_ns_) ++num_waits;
    time_ns_ = std::max(time_ns_, time_ns);
  }
  int num_waits = 0;

 private:
  int64_t time_ns_ = 0;
};

class ServingRunTest : public testing::Test {
 protected:
  ServedFile serve(const std::string& text,
                   const std::map<std::string, AdapterFolder>& folders = {},
                   const std::set<std::string>& names = {}) {
    SchedulerConfig config;
    config.residency = {.max_loras = max_loras_, .max_cpu_loras = max_loras_ + 1};
    config.num_blocks = 100;
    config.max_model_len = 32;
    executor_ = std::make_unique<ClockedReferenceExecutor>(
        model_, config, ModelRunnerConfig{.max_lora_rank = 4}, clock_);
    ServingRun run(config, *executor_, clock_);
    for (const std::string& name : names) run.add_adapter(name, folders.at(name));
    file_ = parse_request_file(text, "r.jsonl");
    resolve_names(file_, "base", names);
    return run.serve(file_, folders, [this](int64_t count) { ended_.push_back(count); });
  }

  AdapterFolder folder() const {
    const auto made = std::make_shared<reference::RandomAdapter>(random_adapter(model_.config, 2));
    return {.rank = 4, .bytes = 1, .source = [made] { return made->adapter; }};
  }
  static AdapterFolder broken() {
    return {.rank = 4, .bytes = 1, .source = []() -> reference::Adapter {
              throw InputError("disk", "it is gone");
            }};
  }

  const reference::Model model_ = random_model(reference::tiny_model_config(), 1);
  int32_t max_loras_ = 1;
  SlowClock clock_;
  std::unique_ptr<ClockedReferenceExecutor> executor_;
  RequestFile file_;
  std::vector<int64_t> ended_;
};

TEST_F(ServingRunTest, AnArrivalDuringAStepKeepsItsTime) {
  const ServedFile out = serve(
      "{\"prompt\": [1, 2], \"max_tokens\": 2}\n"
      "{\"prompt\": [3], \"max_tokens\": 1, \"arrival_s\": 3e-8}\n");
  ASSERT_EQ(out.requests.size(), 2u);
  EXPECT_EQ(out.requests[0].first_scheduled_ns, 0);
  EXPECT_THAT(out.requests[0].token_ns, ElementsAre(100, 200));
  EXPECT_EQ(out.requests[1].arrival_ns, 30);
  EXPECT_EQ(out.requests[1].first_scheduled_ns, 100) << "the step that was under way comes first";
  EXPECT_THAT(out.requests[1].token_ns, ElementsAre(200));
  EXPECT_EQ(out.end_ns, 200);
  EXPECT_EQ(out.num_steps, 2);
  EXPECT_EQ(clock_.num_waits, 0);
  EXPECT_THAT(ended_, ElementsAre(1, 2));
}

TEST_F(ServingRunTest, AnIdleEngineWaitsForTheNextArrival) {
  const ServedFile out = serve(
      "{\"prompt\": [1], \"max_tokens\": 1}\n"
      "{\"prompt\": [3], \"max_tokens\": 1, \"arrival_s\": 5}\n");
  EXPECT_EQ(clock_.num_waits, 1);
  EXPECT_EQ(out.requests[1].first_scheduled_ns, 5'000'000'000);
  EXPECT_THAT(out.requests[1].token_ns, ElementsAre(5'000'000'100));
}

TEST_F(ServingRunTest, AnAdapterThatCannotBeHadIsTheErrorOfItsRequests) {
  const ServedFile out =
      serve("{\"model\": \"a\", \"prompt\": [1]}\n{\"prompt\": [1], \"max_tokens\": 1}\n",
            {{"a", broken()}}, {"a"});
  EXPECT_EQ(out.requests[0].reason, FinishReason::error);
  EXPECT_EQ(out.requests[0].error, "disk: it is gone");
  EXPECT_EQ(out.requests[1].reason, FinishReason::length);
  EXPECT_EQ(out.num_loads, 2) << "it is tried twice";
}

// What was refused, as "line: why".
std::vector<std::string> refusals(const ServedFile& out) {
  std::vector<std::string> lines;
  for (const RefusedOperation& refused : out.refused) {
    lines.push_back(fmt::format("{}: {}", refused.line, refused.why));
  }
  return lines;
}

TEST_F(ServingRunTest, APinThatIsRefusedSaysWhatIsInItsWay) {
  max_loras_ = 2;
  const ServedFile out =
      serve(R"({"prompt": [1], "max_tokens": 20, "model": "a"})"
            "\n"
            R"({"prompt": [1], "max_tokens": 20, "model": "b"})"
            "\n"
            R"({"operation": "pin_lora", "lora_name": "c", "arrival_s": 1e-6})"
            "\n"
            R"({"operation": "pin_lora", "lora_name": "b"})"
            "\n"
            R"({"operation": "pin_lora", "lora_name": "c", "arrival_s": 1})"
            "\n",
            {{"a", folder()}, {"b", folder()}, {"c", folder()}}, {"a", "b", "c"});
  EXPECT_EQ(out.requests[1].reason, FinishReason::length);
  EXPECT_LT(out.requests[1].first_scheduled_ns, 1000);
  EXPECT_GT(out.requests[1].finish_ns, 1000);
  EXPECT_THAT(refusals(out), ElementsAre("3: every slot is in use now",
                                         "5: it would leave no slot for other adapters"));
}

TEST_F(ServingRunTest, APinWhoseAdapterCannotBeHadIsRefused) {
  max_loras_ = 2;
  const std::string pin = "{\"operation\": \"pin_lora\", \"lora_name\": \"a\"}\n";
  const std::string request = "{\"prompt\": [1], \"max_tokens\": 1}\n";
  const ServedFile out = serve(pin + request, {{"a", broken()}}, {"a"});
  EXPECT_THAT(refusals(out), ElementsAre("1: its adapter cannot be loaded: disk: it is gone"));
  EXPECT_EQ(out.requests[0].reason, FinishReason::length);
}

TEST_F(ServingRunTest, APinThatIsTakenBackNeedsNoAdapter) {
  max_loras_ = 2;
  const std::string pin = "{\"operation\": \"pin_lora\", \"lora_name\": \"a\"}\n";
  const std::string request = "{\"prompt\": [1], \"max_tokens\": 1}\n";
  for (const char* back : {"unpin_lora", "unload_lora_adapter"}) {
    const std::string line = fmt::format("{{\"operation\": \"{}\", \"lora_name\": \"a\"}}\n", back);
    EXPECT_THAT(serve(pin + line + request, {{"a", broken()}}, {"a"}).refused, IsEmpty()) << back;
  }
}

TEST_F(ServingRunTest, WhatTheSchedulerRefusesSaysWhy) {
  const ServedFile out = serve("{\"prompt\": [1], \"max_tokens\": 32}\n{\"prompt\": [1]}\n");
  EXPECT_EQ(out.requests[0].reason, FinishReason::error);
  EXPECT_THAT(out.requests[0].error, HasSubstr("max_model_len"));
  EXPECT_EQ(out.requests[0].first_scheduled_ns, -1);
  EXPECT_EQ(out.requests[1].reason, FinishReason::length);
}

}  // namespace
}  // namespace loratory::sim
