#include "scheduler_sim/executors/reference_engine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "fuzz/support/engine_case.hpp"
#include "reference/base/input_error.hpp"
#include "scheduler_sim/simulator/event_log.hpp"

namespace loratory::sim {
namespace {

using reference::Generation;
using reference::Model;
using reference::ModelConfig;
using reference::RandomAdapter;
using testing::HasSubstr;

struct Log : DecisionSink {
  void on_decision(const Decision& d) override { all.push_back(d); }
  template <typename Kind>
  int count() const {
    return int(std::ranges::count_if(all, [](const Decision& d) { return d.is<Kind>(); }));
  }
  // Tokens that request `id` found in the cache at its first admission.
  int64_t cached(uint64_t id) const {
    for (const Decision& d : all) {
      const auto* admission = d.get_if<decision::Admission>();
      if (admission != nullptr && d.request == id) return admission->num_cached_tokens;
    }
    return -1;
  }
  std::vector<Decision> all;
};

// A model, adapters "x", "y", "z" of different ranks and modules, and an engine.
class ReferenceEngineTest : public testing::Test {
 protected:
  ReferenceEngineTest() : model_(random_model(small_model(), 1)) {
    adapters_.emplace("x", adapter(2, {.rank = 3, .embed_tokens = true, .lm_head = true}));
    adapters_.emplace("y", adapter(3, {.rank = 1, .use_rslora = true, .mlp = false}));
    adapters_.emplace("z", adapter(4, {.rank = 4, .attention = false}));
  }

  static ModelConfig small_model() {
    ModelConfig c = reference::tiny_model_config();
    c.hidden = 24;
    c.intermediate = 20;
    c.head_dim = 8;
    c.vocab = 40;
    return c;
  }
  static SchedulerConfig config(int32_t max_loras) {
    SchedulerConfig c;
    c.residency.max_loras = max_loras;
    c.residency.max_cpu_loras = 4;
    c.block_size = 4;
    c.num_blocks = 100;
    return c;
  }
  RandomAdapter adapter(uint64_t seed, const reference::RandomAdapterOptions& options) const {
    return random_adapter(model_.config, seed, options);
  }
  // The engine of this test. Adapters are registered.
  ReferenceEngine& start(const SchedulerConfig& c, uint64_t seed = 0) {
    log_ = {};
    engine_ = std::make_unique<ReferenceEngine>(model_, c, ModelRunnerConfig{.max_lora_rank = 4},
                                                seed, &log_);
    for (const auto& [name, a] : adapters_) {
      engine_->register_adapter(name, uint32_t(a.adapter.rank), source_of(a));
    }
    return *engine_;
  }
  // Prompt tokens follow from `prompt_seed`; a shorter prompt is a beginning of a longer one.
  EngineRequest request(uint64_t id, const std::string& adapter, int64_t num_prompt,
                        int64_t max_new, uint64_t prompt_seed = 9) const {
    EngineRequest r;
    r.id = id;
    r.adapter = adapter;
    Draw draw(prompt_seed);
    for (int64_t i = 0; i < num_prompt; ++i) {
      r.prompt.push_back(int32_t(draw(model_.config.vocab)));
    }
    r.params.max_new_tokens = max_new;
    return r;
  }
  Generation oracle(const EngineRequest& r) const {
    const auto a = adapters_.find(r.adapter);
    return generate(model_, a == adapters_.end() ? nullptr : &a->second.adapter, r.prompt,
                    r.params);
  }
  void submit(const EngineRequest& r) {
    ASSERT_EQ(engine_->submit(r), SubmitStatus::ok);
    requests_.push_back(r);
  }
  // Runs to the end; every request must have the oracle's tokens and logits.
  void run_and_compare() {
    engine_->run();
    for (const EngineRequest& r : requests_) {
      EXPECT_TRUE(same_generation(engine_->output(r.id), oracle(r))) << "request " << r.id;
      EXPECT_NE(engine_->output(r.id).reason, FinishReason::abort);
    }
  }

  Model model_;
  std::map<std::string, RandomAdapter> adapters_;
  Log log_;
  std::unique_ptr<ReferenceEngine> engine_;
  std::vector<EngineRequest> requests_;
};

// Without this the tests below would compare nothing with nothing.
TEST_F(ReferenceEngineTest, TheAdaptersMakeADifference) {
  std::set<std::vector<int32_t>> outputs;
  for (const char* name : {"", "x", "y", "z"}) {
    outputs.insert(oracle(request(0, name, 6, 8)).tokens);
  }
  EXPECT_EQ(outputs.size(), 4U);
}

// Six tokens of context fill the window; the engine must refuse what would go past it before it
// computes anything.
TEST_F(ReferenceEngineTest, RequestsPastTheSlidingWindowAreRefused) {
  model_.config.sliding_window = 6;
  start(config(1));
  EXPECT_EQ(engine_->submit(request(1, "x", 3, 4)), SubmitStatus::too_long);
  EXPECT_EQ(engine_->submit(request(2, "x", 7, 0)), SubmitStatus::too_long);
  submit(request(3, "x", 3, 3));
  submit(request(4, "", 6, 0));
  run_and_compare();
}

// [6.3] [6.9] P54: 9 prompt tokens in blocks of 4, so two blocks are found; the third request goes
// on where the first one stopped and finds the blocks with its generated tokens.
TEST_F(ReferenceEngineTest, APrefixHitComputesLessAndGivesTheSame) {
  start(config(1));
  submit(request(1, "x", 9, 4));
  engine_->run();
  submit(request(2, "x", 9, 4));
  EngineRequest longer = request(3, "x", 9, 4);
  const std::vector<int32_t>& generated = engine_->output(1).tokens;
  longer.prompt.insert(longer.prompt.end(), generated.begin(), generated.end());
  submit(longer);
  run_and_compare();
  EXPECT_EQ(log_.cached(1), 0);
  EXPECT_EQ(log_.cached(2), 8);
  EXPECT_EQ(log_.cached(3), 12);
  EXPECT_EQ(engine_->output(1).tokens, engine_->output(2).tokens);
}

TEST_F(ReferenceEngineTest, AdaptersDoNotShareKv) {  // [6.2] P45
  start(config(2));
  uint64_t id = 0;
  for (const char* name : {"x", "y", "", "x"}) {
    submit(request(++id, name, 9, 3));
    engine_->run();
  }
  run_and_compare();
  EXPECT_EQ(log_.cached(2), 0);
  EXPECT_EQ(log_.cached(3), 0);
  EXPECT_EQ(log_.cached(4), 8);
}

TEST_F(ReferenceEngineTest, ChunksOfAPrompt) {  // [2.13] P11
  SchedulerConfig c = config(2);
  c.max_num_batched_tokens = c.max_num_seqs = 3;  // chunks end inside blocks
  start(c);
  submit(request(1, "x", 11, 3));
  submit(request(2, "", 7, 3, 10));
  run_and_compare();
  EXPECT_GE(log_.count<decision::Chunk>(), 5);
}

TEST_F(ReferenceEngineTest, PreemptionInATinyPool) {  // [7.14] P55 P62
  SchedulerConfig c = config(2);
  c.num_blocks = 1 + 5;
  start(c);
  submit(request(1, "x", 8, 10));
  submit(request(2, "y", 6, 10));
  submit(request(3, "", 5, 10));
  run_and_compare();
  EXPECT_GT(log_.count<decision::Preemption>(), 0);
}

TEST_F(ReferenceEngineTest, OneSlotForThreeAdapters) {  // [5.9] [5.15] P63
  start(config(1));
  uint64_t id = 0;
  for (const char* name : {"x", "y", "z", "x", "y", "z"}) {
    ++id;
    submit(request(id, name, 5, 3, id));
  };
  run_and_compare();
  EXPECT_GE(log_.count<decision::Eviction>(), 2);
  EXPECT_GE(log_.count<decision::Copy>(), 3);
}

// [5.6] An adapter that lost its place on the CPU is no longer there.
TEST_F(ReferenceEngineTest, OnePlaceOnTheCpu) {
  SchedulerConfig c = config(1);
  c.residency.max_cpu_loras = 1;
  start(c);
  for (const char* name : {"x", "y", "z"}) submit(request(uint64_t(name[0]), name, 5, 3));
  run_and_compare();
  int num_on_cpu = 0;
  for (const char* name : {"x", "y", "z"}) {
    const Residency& residency = engine_->scheduler().residency();
    num_on_cpu += engine_->runner().is_on_cpu(residency.uid(residency.find(name)));
  }
  EXPECT_EQ(num_on_cpu, 1);
}

// [2.10] [2.13] P2 P6 P7: base rows and rows of three adapters side by side, greedy and seeded.
TEST_F(ReferenceEngineTest, MixedBatches) {
  SchedulerConfig c = config(3);
  c.load_mode = LoadMode::blocking;
  c.pack = PackMode::off;
  start(c);
  uint64_t id = 0;
  for (const char* name : {"x", "", "y", "z", "", "x"}) {
    ++id;
    EngineRequest r = request(id, name, 3 + int64_t(id), 5, id);
    if (id % 2 == 0) r.params.sampling = {.temperature = 1, .top_k = 8, .top_p = 0.9, .seed = id};
    submit(r);
  }
  engine_->advance();
  std::set<AdapterRef> in_step;
  ASSERT_NE(engine_->step(), nullptr);
  for (const StepRow& row : engine_->step()->rows) in_step.insert(row.adapter);
  EXPECT_EQ(in_step.size(), 4U);
  run_and_compare();
}

// [5.24] P42 P63: the order in which loads, copies and steps end is another for each seed.
TEST_F(ReferenceEngineTest, DelaysDoNotShow) {
  std::set<std::vector<int64_t>> orders;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    requests_.clear();
    start(config(2), seed);
    uint64_t id = 0;
    for (const char* name : {"x", "y", "", "z", "x"}) {
      ++id;
      submit(request(id, name, 6, 4, id));
    };
    run_and_compare();
    std::vector<int64_t> order;
    for (const Decision& d : log_.all) order.push_back(int64_t(d.what.index()));
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 5U);
}

TEST_F(ReferenceEngineTest, SameSeedSameEverything) {  // P64
  std::vector<std::vector<EventLog::Record>> logs;
  for (int i = 0; i < 2; ++i) {
    requests_.clear();
    start(config(1), 5);
    for (const char* name : {"x", "y"}) submit(request(uint64_t(name[0]), name, 6, 4));
    run_and_compare();
    logs.emplace_back();
    for (const Decision& d : log_.all) logs.back().push_back(EventLog::record_of(d));
  }
  EXPECT_EQ(logs[0], logs[1]);
}

// [5.2] [5.26] P39 P40: requests in flight keep the old weights and their KV, new ones get the new
// weights and no old KV.
TEST_F(ReferenceEngineTest, ReloadUnderTheSameName) {
  start(config(1));
  submit(request(1, "x", 9, 6));
  while (engine_->step() == nullptr) ASSERT_TRUE(engine_->advance());
  const RandomAdapter old = adapters_.at("x");
  const RandomAdapter fresh = adapter(77, {.rank = 2});
  engine_->register_adapter("x", 2, source_of(fresh), /*replace=*/true);
  ASSERT_EQ(engine_->submit(request(2, "x", 9, 6)), SubmitStatus::ok);
  run_and_compare();
  EXPECT_EQ(log_.cached(2), 0);
  adapters_.at("x") = fresh;
  EXPECT_TRUE(same_generation(engine_->output(2), oracle(request(2, "x", 9, 6))));
  EXPECT_EQ(log_.count<decision::Unload>(), 1);
}

TEST_F(ReferenceEngineTest, CancelledInAStep) {  // [7.16] P65
  start(config(2));
  submit(request(1, "x", 5, 3));
  ASSERT_EQ(engine_->submit(request(2, "y", 5, 8, 3)), SubmitStatus::ok);
  while (log_.count<decision::FirstToken>() < 2) ASSERT_TRUE(engine_->advance());
  while (engine_->step() == nullptr) ASSERT_TRUE(engine_->advance());
  engine_->cancel(2);
  run_and_compare();
  const EngineOutput& cut = engine_->output(2);
  EXPECT_EQ(cut.reason, FinishReason::abort);
  EXPECT_LT(cut.tokens.size(), 8U);
  EXPECT_TRUE(same_generation(cut, oracle(request(2, "y", 5, 8, 3))));
}

// [5.21] P35: one line says why; nobody else's request fails, none is served by the base model.
TEST_F(ReferenceEngineTest, AFailedLoadFailsItsOwnRequests) {
  for (const LoadMode mode : {LoadMode::overlap, LoadMode::blocking}) {
    requests_.clear();
    SchedulerConfig c = config(2);
    c.load_mode = mode;
    start(c);
    engine_->register_adapter("gone", 1, peft_directory("/nowhere", {}));
    engine_->register_adapter("large", 9, source_of(adapter(5, {.rank = 9})));
    submit(request(1, "x", 5, 3));
    ASSERT_EQ(engine_->submit(request(2, "gone", 5, 3)), SubmitStatus::ok);
    ASSERT_EQ(engine_->submit(request(3, "large", 5, 3)), SubmitStatus::ok);
    submit(request(4, "", 5, 3));
    run_and_compare();
    for (const uint64_t id : {2, 3}) {
      EXPECT_EQ(engine_->output(id).reason, FinishReason::error);
      EXPECT_TRUE(engine_->output(id).tokens.empty());
    }
    ASSERT_EQ(engine_->load_errors().size(), 4U);  // each was tried twice
    std::string all;
    for (const std::string& line : engine_->load_errors()) all += line + "\n";
    EXPECT_THAT(all, HasSubstr("/nowhere"));
    EXPECT_THAT(all, HasSubstr("does not fit the slots"));
  }
}

TEST_F(ReferenceEngineTest, LoadsPeftDirectories) {  // [4.1] P63
  const std::string folder = testing::TempDir() + "adapter";
  const reference::RandomAdapterOptions options{.rank = 4, .lm_head = true};
  write_random_adapter(folder, model_.config, 6, options);
  start(config(1));
  engine_->register_adapter("disk", 4, peft_directory(folder, base_model_shapes(model_.config)));
  adapters_.emplace("disk", adapter(6, options));
  submit(request(1, "disk", 5, 4));
  submit(request(2, "x", 5, 4));
  submit(request(3, "disk", 6, 4));
  run_and_compare();
  std::filesystem::remove_all(folder);
}

TEST_F(ReferenceEngineTest, RefusesAtSubmission) {  // [5.4]
  start(config(1));
  EXPECT_EQ(engine_->submit(request(1, "nobody", 5, 4)), SubmitStatus::unknown_adapter);
  EXPECT_EQ(engine_->submit(request(1, "", 0, 4)), SubmitStatus::empty_prompt);
  EngineRequest bad = request(1, "x", 3, 1);
  bad.prompt[2] = int32_t(model_.config.vocab);
  try {
    engine_->submit(bad);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "request 1: prompt[2]: token 40 is outside the vocabulary of 40");
  }
  EXPECT_FALSE(engine_->advance());
}

TEST_F(ReferenceEngineTest, StopTokensAndPrefillOnly) {  // [7.3] [7.4]
  start(config(1));
  EngineRequest r = request(1, "x", 6, 8);
  r.params.stop_tokens = {oracle(r).tokens[2]};
  submit(r);
  submit(request(2, "x", 6, 0));
  run_and_compare();
  EXPECT_EQ(engine_->output(1).reason, FinishReason::stop);
  EXPECT_LE(engine_->output(1).tokens.size(), 3U);
  EXPECT_TRUE(engine_->output(2).tokens.empty());
}

}  // namespace
}  // namespace loratory::sim
