// Worked examples of docs/scheduler.md: submission, preemption, abort, unload, failed loads.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "fuzz/support/handed_out.hpp"
#include "tests/scheduler_sim/scheduler/engine.hpp"

namespace loratory::sim {
namespace {

using testing::ElementsAre;
using testing::Pair;
using testing::UnorderedElementsAre;

constexpr FinishReason kStop = FinishReason::stop, kLength = FinishReason::length,
                       kAbort = FinishReason::abort, kError = FinishReason::error;

RequestSpec tokens_spec(char id, Uid adapter, std::span<const int32_t> prompt, uint32_t max_new) {
  RequestSpec spec;
  spec.id = uint64_t(id);
  spec.adapter = adapter;
  spec.tokens = prompt;
  spec.num_prompt_tokens = uint32_t(prompt.size());
  spec.max_new_tokens = max_new;
  return spec;
}

TEST(Submit, RefusesWhatCanNeverRun) {  // [7.3]
  SchedulerConfig c = Engine::config(1);
  c.num_blocks = 4;  // 12 tokens
  c.max_model_len = 20;
  Engine e(c);
  EXPECT_EQ(e.submit('a', 0, 0, 1), SubmitStatus::empty_prompt);
  EXPECT_EQ(e.submit('a', 0, 20, 1), SubmitStatus::too_long);
  EXPECT_EQ(e.submit('a', 0, 8, 6), SubmitStatus::never_fits);
  EXPECT_EQ(e.submit('a', 0, 13, 0), SubmitStatus::never_fits);
  RequestSpec spec;
  spec.num_prompt_tokens = 3;
  const std::vector<uint64_t> block{1};
  spec.block_contents = block;  // three tokens fill no block
  EXPECT_EQ(e.submit(spec), SubmitStatus::bad_content);
  EXPECT_EQ(e.submit('a', 0, 8, 5), SubmitStatus::ok);
  EXPECT_EQ(e.submit('a', 0, 1, 1), SubmitStatus::duplicate_id);
  e.scheduler.unload_adapter("1", false, 0);
  spec.block_contents = {};
  spec.id = 'b', spec.adapter = 1;  // its name is gone, its uid with it
  EXPECT_EQ(e.submit(spec), SubmitStatus::unknown_adapter);
  EXPECT_EQ(e.scheduler.num_live(), 1);
}

TEST(SchedulerConfig, NamesTheFirstSettingOutOfItsLimits) {
  SchedulerConfig legal = Engine::config(1);
  EXPECT_EQ(legal.problem(), "");
  const auto problem_after = [&](auto change) {
    SchedulerConfig c = legal;
    change(c);
    return c.problem();
  };
  using C = SchedulerConfig;
  EXPECT_EQ(problem_after([](C& c) { c.residency.max_loras = 0; }), "max_loras must be 1..4096");
  EXPECT_EQ(problem_after([](C& c) { c.residency = {.max_loras = 4097, .max_cpu_loras = 4097}; }),
            "max_loras must be 1..4096");
  EXPECT_EQ(problem_after([](C& c) { c.residency = {.max_loras = 4, .max_cpu_loras = 3}; }),
            "max_cpu_loras must be >= max_loras");
  EXPECT_EQ(problem_after([](C& c) { c.residency.num_load_workers = 0; }),
            "num_load_workers must be >= 1");
  EXPECT_EQ(problem_after([](C& c) { c.block_size = 0; }), "block_size must be >= 1");
  EXPECT_EQ(problem_after([](C& c) { c.num_blocks = 1; }),
            "num_blocks must be >= 2 (block 0 is the null block)");
  EXPECT_EQ(problem_after([](C& c) { c.max_num_seqs = 0; }), "max_num_seqs must be >= 1");
  EXPECT_EQ(problem_after([](C& c) { c.max_num_batched_tokens = c.max_num_seqs - 1; }),
            "max_num_batched_tokens must be >= max_num_seqs");
  legal.chunked_prefill = false;
  EXPECT_EQ(problem_after([](C& c) { c.max_model_len = c.max_num_batched_tokens; }), "");
  EXPECT_EQ(problem_after([](C& c) { c.max_model_len = c.max_num_batched_tokens + 1; }),
            "without chunked_prefill max_num_batched_tokens must be >= max_model_len");
  EXPECT_EQ(problem_after([](C& c) { c.long_prefill_threshold = 1; }),
            "long_prefill_threshold needs chunked_prefill");
  legal.chunked_prefill = true;
  EXPECT_EQ(problem_after([](C& c) { c.drain_factor = -0.5; }), "drain_factor must be >= 0");
  EXPECT_EQ(problem_after([](C& c) { c.drain_factor = std::nan(""); }),
            "drain_factor must be >= 0");
}

// Its uid is good until its last request ends, but for new requests it is gone.
TEST(Submit, RefusesARetiringAdapter) {  // [5.4] [7.3]
  Engine e(Engine::config(1));
  e.submit('a', 1, 2, 2);
  RequestSpec spec;
  spec.id = 'b', spec.adapter = 1, spec.num_prompt_tokens = 2, spec.max_new_tokens = 2;
  ASSERT_TRUE(e.scheduler.unload_adapter("1", false, 0));
  EXPECT_EQ(e.submit(spec), SubmitStatus::unknown_adapter);
  while (e.is_live('a')) e.step();
  EXPECT_EQ(e.end_of('a'), kLength);
  spec.adapter = 1000;  // nobody has this uid
  EXPECT_EQ(e.submit(spec), SubmitStatus::unknown_adapter);
}

TEST(Submit, ABatchIsAcceptedAsAWhole) {
  Engine e(Engine::config(1));
  std::vector<RequestSpec> specs(3);
  for (size_t i = 0; i < 3; ++i) specs[i].id = i, specs[i].num_prompt_tokens = 1;
  specs[2].id = 1;
  size_t failed = 0;
  EXPECT_EQ(e.scheduler.submit(specs, 0, failed), SubmitStatus::duplicate_id);
  EXPECT_EQ(failed, 2U);
  EXPECT_EQ(e.scheduler.num_live(), 0);
  specs[2].id = 2;
  EXPECT_EQ(e.scheduler.submit(specs, 0, failed), SubmitStatus::ok);
  EXPECT_EQ(e.scheduler.num_live(), 3);
}

// [7.3]: one refused adapter, and nobody of the batch waits, loads or is seen; without it the batch
// is its requests one after the other.
TEST(Submit, ABatchMayNameSeveralAdapters) {
  Engine batch(Engine::config(2)), one_by_one(Engine::config(2));
  std::vector<RequestSpec> specs(4);
  for (size_t i = 0; i < 4; ++i) specs[i].id = 'a' + i, specs[i].num_prompt_tokens = 3;
  specs[0].adapter = 2, specs[1].adapter = kBaseUid;
  specs[2].adapter = 1, specs[3].adapter = 3;
  batch.scheduler.unload_adapter("3", false, 0);
  batch.log.all.clear();
  size_t failed = 0;
  EXPECT_EQ(batch.scheduler.submit(specs, 0, failed), SubmitStatus::unknown_adapter);
  EXPECT_EQ(failed, 3U);
  EXPECT_EQ(batch.scheduler.num_live(), 0);
  EXPECT_TRUE(batch.log.all.empty());
  EXPECT_TRUE(batch.scheduler.starts().loads.empty());

  specs[3].adapter = specs[0].adapter;
  EXPECT_EQ(batch.scheduler.submit(specs, 0, failed), SubmitStatus::ok);
  const std::vector<LoadStart>& loads = batch.scheduler.starts().loads;
  ASSERT_EQ(loads.size(), 2U);
  EXPECT_EQ(loads[0].uid, specs[0].adapter);
  EXPECT_EQ(loads[1].uid, specs[2].adapter);
  for (const RequestSpec& spec : specs) EXPECT_EQ(one_by_one.submit(spec), SubmitStatus::ok);
  EXPECT_EQ(batch.step(), one_by_one.step());
  EXPECT_EQ(batch.slots(), (std::vector<int>{2, 1}));
  EXPECT_EQ(batch.slots(), one_by_one.slots());
}

TEST(Requests, APoolThatFitsExactlyIsEnough) {  // [7.3]: 8 + 5 - 1 = 12 tokens = 3 blocks
  SchedulerConfig c = Engine::config(1);
  c.num_blocks = 4;
  Engine e(c);
  ASSERT_EQ(e.submit('a', 0, 8, 5), SubmitStatus::ok);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(e.step().size(), 1U);
  EXPECT_EQ(e.end_of('a'), kLength);
  EXPECT_TRUE(e.decisions<decision::Preemption>().empty());
}

TEST(Requests, PrefillOnlySamplesNothing) {  // [7.3]
  Engine e(Engine::config(1));
  e.submit('a', 0, 5, 0);
  EXPECT_THAT(e.plan(), ElementsAre(Pair('a', 5)));
  EXPECT_FALSE(e.rows[0].samples);
  e.commit();
  EXPECT_EQ(e.end_of('a'), kLength);
  EXPECT_TRUE(e.decisions<decision::FirstToken>().empty());
}

TEST(Requests, StopTokensEndBeforeLength) {  // [7.4]
  Engine e(Engine::config(1));
  const std::vector<int32_t> prompt{1, 2}, stops{7};
  RequestSpec spec = tokens_spec('a', kBaseUid, prompt, 2);
  spec.stop_tokens = stops;
  e.submit(spec);
  e.plan(), e.commit({5});
  EXPECT_TRUE(e.is_live('a'));
  e.plan(), e.commit({7});
  EXPECT_EQ(e.end_of('a'), kStop);
}

TEST(Requests, ThePreemptedOneComesBackWithItsTokens) {  // [7.6] [7.7] [7.14]
  SchedulerConfig c = Engine::config(1);
  c.num_blocks = 5;  // 16 tokens
  c.prefix_cache = false;
  Engine e(c);
  e.submit('a', 0, 7, 6), e.submit('b', 0, 7, 6);
  EXPECT_THAT(e.step(), ElementsAre(Pair('a', 7), Pair('b', 7)));
  EXPECT_THAT(e.step(), ElementsAre(Pair('a', 1), Pair('b', 1)));
  e.submit('c', 0, 1, 1);
  EXPECT_THAT(e.step(), ElementsAre(Pair('a', 1)));  // b goes, and nobody is admitted
  EXPECT_EQ(e.request('b').state, RequestState::preempted);
  EXPECT_EQ(e.request('b').num_generated, 2U);
  // Its nine tokens need three blocks, there is one: it heads the queue, and c waits behind it.
  for (int i = 0; i < 3; ++i) EXPECT_THAT(e.step(), ElementsAre(Pair('a', 1)));
  EXPECT_EQ(e.end_of('a'), kLength);
  EXPECT_THAT(e.step(), ElementsAre(Pair('b', 9), Pair('c', 1)));
  while (e.is_live('b')) e.step();
  EXPECT_EQ(e.decisions<decision::FirstToken>().size(), 3U);  // b's first was its first
}

// [6.4] a published the blocks of the common prompt. b wants the logits of all its rows and had
// computed four of them when it lost its block; those of c, whose place it has, were sixteen.
TEST(Requests, PromptLogprobsRecoverWhatWasComputed) {
  SchedulerConfig c = Engine::config(1);
  c.num_blocks = 6;
  c.long_prefill_threshold = 4;
  Engine e(c);
  const std::vector<int32_t> longer{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const std::span<const int32_t> prompt(longer.data(), 9);
  e.submit(tokens_spec('a', kBaseUid, prompt, 8));
  e.step(), e.step(), e.step();
  e.submit(tokens_spec('c', kBaseUid, longer, 5));
  for (int i = 0; i < 4; ++i) e.step();
  ASSERT_EQ(e.decisions<decision::Preemption>().size(), 1U);
  EXPECT_EQ(e.decisions<decision::Preemption>()[0].num_lost_tokens, 16);
  e.scheduler.abort('c', e.now_ns);
  RequestSpec spec = tokens_spec('b', kBaseUid, prompt, 1);
  spec.prompt_logprobs = true;
  e.submit(spec);
  EXPECT_THAT(e.step(), ElementsAre(Pair('a', 1), Pair('b', 4)));  // a new one matches nothing
  EXPECT_THAT(e.step(), ElementsAre(Pair('a', 1)));
  EXPECT_EQ(e.request('b').state, RequestState::preempted);
  EXPECT_THAT(e.step(), ElementsAre(Pair('a', 1), Pair('b', 4)));
  EXPECT_EQ(e.decisions<decision::Admission>().back().num_cached_tokens, 4);  // and finds its own
  EXPECT_THAT(e.step(), ElementsAre(Pair('b', 1)));
  EXPECT_EQ(e.end_of('b'), kLength);
}

// b wants the logits of its 13 prompt tokens. It had computed 12 when it first lost its blocks and
// 6 the second time, when others had evicted what it published. z computes the same prompt
// meanwhile, and b may use of that what it had seen once: all 12.
TEST(Requests, PromptLogprobsRecoverTheMostThatWasComputed) {  // [6.4]
  SchedulerConfig c = Engine::config(1);
  c.num_blocks = 5;  // 16 tokens
  c.max_num_batched_tokens = c.max_num_seqs = 5;
  Engine e(c);
  const std::vector<int32_t> prompt{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};
  e.submit('x', 0, 1, 5), e.step();
  RequestSpec spec = tokens_spec('b', kBaseUid, prompt, 1);
  spec.priority = 1;
  spec.prompt_logprobs = true;
  e.submit(spec);
  for (int i = 0; i < 3; ++i) EXPECT_THAT(e.step(), ElementsAre(Pair('x', 1), Pair('b', 4)));
  EXPECT_THAT(e.step(), ElementsAre(Pair('x', 1)));  // x needs a second block
  e.submit('y', 0, 16, 1);                           // and y every block
  while (e.is_live('y')) e.step();
  EXPECT_EQ(e.request('b').state, RequestState::preempted);
  e.submit('w', 0, 3, 3);
  EXPECT_THAT(e.step(), ElementsAre(Pair('w', 3), Pair('b', 2)));  // nothing of b is left
  EXPECT_THAT(e.step(), ElementsAre(Pair('w', 1), Pair('b', 4)));
  EXPECT_THAT(e.step(), ElementsAre(Pair('w', 1)));
  EXPECT_EQ(e.decisions<decision::Preemption>().size(), 2U);
  e.submit(tokens_spec('z', kBaseUid, prompt, 1));
  while (e.is_live('z')) e.step();
  EXPECT_THAT(e.step(), ElementsAre(Pair('b', 1)));
  EXPECT_EQ(e.end_of('b'), kLength);
}

TEST(Requests, PriorityDecidesWhoIsPreempted) {
  SchedulerConfig c = Engine::config(1);
  c.num_blocks = 5;
  Engine e(c);
  e.submit('a', 0, 7, 4, /*priority=*/1), e.step();
  e.submit('b', 0, 8, 4, /*priority=*/0), e.step();
  EXPECT_THAT(e.step(), ElementsAre(Pair('b', 1)));  // a, although it was admitted first
}

// v has its token already when x takes its blocks: y gets it, 6 - 1 in place of 6 - 2.
TEST(Requests, TokensOfThePreemptedReturnToTheBudget) {  // [7.6]
  SchedulerConfig c = Engine::config(1);
  c.num_blocks = 5;
  c.max_num_batched_tokens = 6;
  c.max_num_seqs = 3;
  Engine e(c);
  e.submit('v', 0, 5, 4, /*priority=*/1), e.step();
  e.submit('x', 0, 4, 4), e.submit('y', 0, 9, 3);
  EXPECT_THAT(e.step(), ElementsAre(Pair('v', 1), Pair('x', 4), Pair('y', 1)));
  EXPECT_THAT(e.step(), ElementsAre(Pair('x', 1), Pair('y', 5)));
}

// Without the prompt's tokens the generated ones name no block: b's second try must not match the
// blocks of a, whose prompt is what b generated.
TEST(Requests, GeneratedTokensAreNotTakenForTheFirstBlocks) {
  SchedulerConfig c = Engine::config(1);
  c.num_blocks = 7;
  Engine e(c);
  const std::vector<int32_t> prompt{5, 5, 5, 5, 5};
  e.submit(tokens_spec('a', kBaseUid, prompt, 1));
  e.plan(), e.commit({5});
  e.submit('c', 0, 7, 8);
  e.submit('b', 0, 4, 12);
  while (e.decisions<decision::Preemption>().empty()) {
    const size_t num_rows = e.plan().size();
    e.commit(std::vector<int32_t>(num_rows, 5));
  }
  EXPECT_EQ(e.request('b').state, RequestState::preempted);
  e.log.all.clear();
  for (int i = 0; i < 20 && e.decisions<decision::Admission>().empty(); ++i) {
    const size_t num_rows = e.plan().size();
    if (num_rows > 0) e.commit(std::vector<int32_t>(num_rows, 5));
  }
  EXPECT_TRUE(e.request('b').keys.empty());  // so all of its blocks are its own
}

TEST(Abort, TwiceIsOnce) {  // [7.16]
  Engine e(Engine::config(1));
  e.scheduler.abort('a', 0);  // unknown
  e.submit('a', 0, 8, 4), e.submit('w', 1, 4, 1);
  e.scheduler.abort('w', 0);
  EXPECT_EQ(e.end_of('w'), kAbort);
  e.plan();
  e.scheduler.abort('a', 1), e.scheduler.abort('a', 1);
  EXPECT_TRUE(e.is_live('a'));  // its step is in flight
  EXPECT_GT(e.scheduler.blocks().num_referenced(), 0U);
  e.commit();
  EXPECT_EQ(e.end_of('a'), kAbort);
  EXPECT_EQ(e.decisions<decision::Abort>().size(), 2U);
  EXPECT_TRUE(e.decisions<decision::FirstToken>().empty());
  EXPECT_EQ(e.scheduler.blocks().num_referenced(), 0U);
}

TEST(Unload, RequestsInFlightGoOn) {  // [5.26] [5.28] P39
  Engine e(Engine::config(2));
  const std::vector<int32_t> prompt{1, 2, 3, 4, 5};
  e.submit(tokens_spec('a', 1, prompt, 3));
  e.submit(tokens_spec('q', 1, prompt, 1));
  e.step();
  EXPECT_TRUE(e.scheduler.unload_adapter("1", false, e.now_ns));
  EXPECT_FALSE(e.scheduler.unload_adapter("1", false, e.now_ns));
  while (e.scheduler.num_live() > 0) e.step();
  EXPECT_EQ(e.end_of('a'), kLength);
  EXPECT_EQ(e.end_of('q'), kLength);
  ASSERT_EQ(e.decisions<decision::Unload>().size(), 1U);
  EXPECT_EQ(e.decisions<decision::Unload>()[0].num_freed_blocks, 1);      // its published block
  EXPECT_TRUE(std::ranges::is_sorted(handed_out(e.scheduler.blocks())));  // none is cached
  EXPECT_THAT(e.slots(), ElementsAre(0, 0));
}

TEST(Unload, AbortFirstOnRequest) {  // [5.29]
  Engine e(Engine::config(1));
  e.submit('a', 1, 4, 9), e.step();
  e.submit('w', 1, 4, 9);
  e.scheduler.unload_adapter("1", true, e.now_ns);
  EXPECT_EQ(e.end_of('a'), kAbort);
  EXPECT_EQ(e.end_of('w'), kAbort);
  EXPECT_EQ(e.decisions<decision::Unload>().size(), 1U);
}

TEST(Reload, NewRequestsGetNewWeightsAndNewKv) {  // P40
  Engine e(Engine::config(2));
  const std::vector<int32_t> prompt{1, 2, 3, 4, 5};
  e.submit(tokens_spec('o', 1, prompt, 9));
  e.step();
  const auto reloaded = e.scheduler.register_adapter("1", 8, 1, true, e.now_ns);
  EXPECT_EQ(reloaded.uid, 9U);
  e.submit(tokens_spec('n', 9, prompt, 9));
  e.step();
  EXPECT_EQ(e.scheduler.residency().uid(e.request('n').adapter), 9U);
  EXPECT_EQ(e.scheduler.residency().uid(e.request('o').adapter), 1U);
  EXPECT_EQ(e.decisions<decision::Admission>()[1].num_cached_tokens, 0);  // no hit
}

// Blocking mode: one of two adapters of the step can not be loaded. It is tried twice, its rows
// fail, nobody else's, and none of what they "computed" can be matched.
TEST(FailedLoad, OnlyItsRowsFail) {  // [5.21] P35
  Engine e(Engine::config(2));
  const std::vector<int32_t> prompt{1, 2, 3, 4, 5};
  e.submit(tokens_spec('g', 1, prompt, 2));
  e.submit(tokens_spec('b', 2, prompt, 2));
  e.plan();
  e.finish_load(true);
  EXPECT_FALSE(e.scheduler.step_can_start());
  e.finish_load(false);
  EXPECT_TRUE(e.is_live('b'));
  e.finish_load(false);
  EXPECT_TRUE(e.decisions<decision::LoadFailure>()[0].is_retried);
  EXPECT_FALSE(e.decisions<decision::LoadFailure>()[1].is_retried);
  e.finish_copy();
  EXPECT_TRUE(e.scheduler.step_can_start());
  e.commit();
  EXPECT_EQ(e.end_of('b'), kError);
  EXPECT_THAT(e.step(), ElementsAre(Pair('g', 1)));
  EXPECT_EQ(e.end_of('g'), kLength);
  e.submit(tokens_spec('c', 2, prompt, 1));  // afresh
  e.step();
  EXPECT_EQ(e.end_of('c'), kLength);
  EXPECT_EQ(e.decisions<decision::Admission>().back().num_cached_tokens, 0);
}

// The row was aborted before its adapter failed: it computed nothing either.
TEST(FailedLoad, AbortedRowPublishesNothing) {
  Engine e(Engine::config(1));
  const std::vector<int32_t> prompt{1, 2, 3, 4, 5};
  e.submit(tokens_spec('a', 1, prompt, 2));
  e.plan();
  e.scheduler.abort('a', 1);
  e.finish_load(false), e.finish_load(false);
  e.commit();
  EXPECT_EQ(e.end_of('a'), kAbort);
  EXPECT_TRUE(std::ranges::is_sorted(handed_out(e.scheduler.blocks())));  // none is cached
}

TEST(FailedLoad, WaitingRequestsFailInOverlapMode) {
  Engine e(Engine::config(1, LoadMode::overlap));
  e.submit('a', 1, 2, 2), e.submit('b', 0, 2, 1);
  e.step();
  e.finish_load(false), e.finish_load(false);
  EXPECT_EQ(e.end_of('a'), kError);
  EXPECT_EQ(e.end_of('b'), kLength);
  EXPECT_EQ(e.scheduler.residency().num_claimants(), 0);
}

// A step waits for adapter 1; the abort of another request of it must not stop the copy.
TEST(Blocking, AbortOfAWaitingRequestDoesNotHang) {
  SchedulerConfig c = Engine::config(1);
  c.max_num_seqs = 1;
  Engine e(c);
  e.submit('a', 1, 2, 1), e.submit('w', 1, 2, 1);
  EXPECT_THAT(e.plan(), ElementsAre(Pair('a', 2)));
  e.scheduler.abort('w', e.now_ns);
  e.finish_transfers();
  ASSERT_TRUE(e.scheduler.step_can_start());
  e.commit();
  EXPECT_EQ(e.end_of('a'), kLength);
}

// A copy that nobody wants any more has one of the two slots when a step needs both: 3 gets its
// slot when its own copy starts, and its row learns of it.
TEST(Blocking, ARowGetsTheSlotOfALateCopy) {  // [5.25]
  Engine e(Engine::config(2));
  e.preload(3);
  ASSERT_EQ(e.scheduler.pin(1, e.now_ns), PinStatus::ok);
  e.submit('p', 1, 1, 1), e.scheduler.abort('p', e.now_ns);  // takes the copy to be started
  ASSERT_EQ(e.copies.size(), 1U);
  e.scheduler.unpin(1, e.now_ns);
  e.submit('b', 2, 3, 1), e.submit('c', 3, 3, 1);
  EXPECT_THAT(e.plan(), ElementsAre(Pair('b', 3), Pair('c', 3)));
  EXPECT_NE(e.rows[0].slot, kNoSlot);
  EXPECT_EQ(e.rows[1].slot, kNoSlot);
  e.finish_transfers();
  EXPECT_THAT(e.slots(), UnorderedElementsAre(2, 3));
  e.commit();
  EXPECT_EQ(e.end_of('b'), kLength);
  EXPECT_EQ(e.end_of('c'), kLength);
}

// An executor that names nobody's transfer is stopped before it reads past the table of adapters.
TEST(TransfersDeathTest, OnlyWhatWasAskedForEnds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Engine e(Engine::config(1));
  EXPECT_DEATH(e.scheduler.load_done(99, true, 0), "only a load that was asked for");
  EXPECT_DEATH(e.scheduler.copy_done(99, 0), "only a copy that was asked for");
}

TEST(Residue, NothingIsLeft) {  // P65
  Engine e(Engine::config(2, LoadMode::overlap), 3);
  for (int i = 1; i <= 3; ++i) e.submit(char('a' + i), i, 9, 3);
  while (e.scheduler.num_live() > 0) {
    e.step();
    e.finish_transfers();
  }
  for (int i = 1; i <= 3; ++i) e.scheduler.unload_adapter(std::to_string(i), false, e.now_ns);
  const Residency& tiers = e.scheduler.residency();
  EXPECT_EQ(num_registered(tiers) + tiers.num_on_gpu() + tiers.num_claimants(), 0);
  const std::vector<BlockId> free = handed_out(e.scheduler.blocks());
  EXPECT_EQ(free.size(), 999U);
  EXPECT_TRUE(std::ranges::is_sorted(free));  // none is cached
}

}  // namespace
}  // namespace loratory::sim
