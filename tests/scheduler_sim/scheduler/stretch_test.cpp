// What mutants of the scheduler got away with.
#include <gtest/gtest.h>

#include <vector>

#include "tests/scheduler_sim/scheduler/engine.hpp"

namespace loratory::sim {
namespace {

// Steps in closed form: that they change nothing is a property.
TEST(Stretch, IsOfferedBehindADecodeThatNothingDisturbs) {
  Engine e(Engine::config(2));
  e.submit('a', 0, 3, 10);
  e.step();
  EXPECT_EQ(e.scheduler.stretch().num_steps, 0);  // the step was a prefill
  e.plan();
  EXPECT_EQ(e.scheduler.stretch().num_steps, 0);  // it is in flight
  e.commit();
  EXPECT_EQ(e.request('a').num_generated, 2U);
  EXPECT_EQ(e.scheduler.stretch().num_steps, 7);  // all of its tokens but the last
  e.submit('b', 0, 3, 10);
  EXPECT_EQ(e.scheduler.stretch().num_steps, 0);
  e.step();
  e.step();
  EXPECT_EQ(e.scheduler.stretch().num_steps, 5);  // a has 4 tokens
}

// Blocks of 4: what a step of the stretch will have taken by then, and how far they go.
TEST(Stretch, CountsBlocksAhead) {
  SchedulerConfig c = Engine::config(2);
  c.num_blocks = 6;
  Engine e(c);
  e.submit('a', 0, 4, 9), e.submit('b', 0, 4, 9);
  e.step(), e.step();
  EXPECT_EQ(e.request('a').num_computed, 5U);
  EXPECT_EQ(e.scheduler.num_blocks_after(3), 4U);  // 8 tokens each
  EXPECT_EQ(e.scheduler.num_blocks_after(4), 6U);  // 9
  EXPECT_EQ(e.scheduler.num_blocks_after(7), 6U);  // 12
  EXPECT_EQ(e.scheduler.num_blocks_after(8), 8U);  // 13
  EXPECT_EQ(e.scheduler.stretch().num_steps, 3);   // half of 6, for which there are no blocks
  e.scheduler.advance(3);
  EXPECT_EQ(e.scheduler.blocks().num_referenced(), 4U);
  EXPECT_EQ(e.request('b').num_generated, 5U);
  EXPECT_EQ(e.scheduler.last_plan().step, 5);
}

// Only behind one who drains a later walk may pass a request over that stops this one.
TEST(Stretch, IsOfferedWhileARequestOfTheBaseModelHasNoBlocks) {
  SchedulerConfig c = Engine::config(2);
  c.num_blocks = 4;
  Engine e(c);
  e.submit('a', 0, 4, 5), e.submit('b', 0, 12, 0);
  e.step(), e.step();
  EXPECT_EQ(e.scheduler.running().size(), 1U);
  EXPECT_EQ(e.scheduler.stretch().num_steps, 2);
}

// The time of whom a walk turned away first, and the steps until it has done so too often.
TEST(Stretch, EndsBeforeSomebodyReserves) {
  SchedulerConfig c = Engine::config(1);
  c.t_starve_ns = 1000;
  c.n_starve = 6;
  Engine e(c);
  e.submit('a', 1, 3, 20), e.submit('b', 2, 3, 20);
  e.step();
  const int64_t first_ns = e.now_ns - 1;  // the plan; then came the commit
  e.step();
  const Stretch stretch = e.scheduler.stretch();
  EXPECT_EQ(stretch.deadline_ns, first_ns + 1000);
  EXPECT_EQ(stretch.num_steps, 4);
}

TEST(Stretch, HasNoLimitWhereItsTimeNeverComes) {
  SchedulerConfig c = Engine::config(1);
  c.t_starve_ns = kNever - 1;
  Engine e(c);
  e.now_ns = 1000;
  e.submit('a', 1, 3, 20), e.submit('b', 2, 3, 20);
  e.step(), e.step();
  EXPECT_EQ(e.scheduler.stretch().deadline_ns, kNever);
}

TEST(Stretch, HasNoLimitWhereNobodyIsTurnedAway) {
  Engine e(Engine::config(1));
  e.submit('a', 1, 3, 200);
  e.step(), e.step();
  EXPECT_EQ(e.scheduler.stretch().num_steps, 197);
  EXPECT_EQ(e.scheduler.stretch().deadline_ns, kNever);
}

// A first rejection at time 0 is one, too: it is not the first one again in the next walk.
TEST(Starvation, TimeBeginsAtZero) {
  SchedulerConfig c = Engine::config(1);
  c.t_starve_ns = 1000;
  Engine e(c);
  e.submit('a', 1, 3, 200), e.submit('b', 2, 3, 200), e.submit('c', 3, 3, 200);
  for (const int64_t now : {0, 0, 0, 999, 1000}) {
    EXPECT_EQ(e.decisions<decision::Reservation>().size(), 0U);
    e.scheduler.plan(now);
    e.now_ns = now;
    e.commit();
  }
  EXPECT_EQ(e.decisions<decision::Reservation>().size(), 2U);
}

// [5.36] The reservation binds requests of its own and of lower priority, and so does the drain.
TEST(Starvation, ADrainLetsThoseOfAHigherPriorityIn) {
  SchedulerConfig c = Engine::config(1);
  c.n_starve = 0;
  Engine e(c);
  e.submit('a', 1, 3, 10), e.submit('b', 2, 3, 10);
  e.step(), e.step();
  EXPECT_EQ(e.decisions<decision::Drain>().size(), 1U);
  e.submit('c', 1, 3, 100);      // too long
  e.submit('d', 1, 3, 100, -1);  // too long, but not bound
  EXPECT_EQ(e.step(), (Engine::Rows{{'a', 1}, {'d', 3}}));
}

// [7.23] Behind whom the reservation let in come all others of his priority, and the very first
// request of all may be one of them: its adapter came to the GPU for another request and lost its
// slot to a pinned one.
TEST(PackedWalk, TheFirstRequestOfAllComesBehindAReservation) {
  SchedulerConfig c = Engine::config(2, LoadMode::overlap);
  c.admission_order = AdmissionOrder::packed;
  c.max_num_seqs = 2;
  c.n_starve = 1;
  c.t_starve_ns = kNever;
  Engine e(c);
  e.submit('a', 1, 2, 4), e.submit('c', 3, 2, 1);
  e.finish_transfers();
  e.scheduler.abort('c', e.now_ns);
  e.submit('k', 1, 2, 1, -1), e.submit('b', 2, 2, 1, -1), e.submit('r', 4, 2, 4);
  e.finish_transfers();
  EXPECT_EQ(e.plan(), Engine::Rows());  // turns r away
  e.finish_transfers();
  EXPECT_EQ(e.step(), (Engine::Rows{{'k', 2}, {'b', 2}}));
  EXPECT_EQ(e.decisions<decision::Reservation>().size(), 1U);
  EXPECT_EQ(e.scheduler.pin(3, e.now_ns), PinStatus::ok);
  e.scheduler.starts().clear();
  e.scheduler.copy_done(3, e.now_ns);
  e.scheduler.unpin(3, e.now_ns);
  EXPECT_EQ(e.slots(), (std::vector<int>{3, 2}));
  e.plan();
  EXPECT_TRUE(e.scheduler.residency().promised(e.ref(4)));
  EXPECT_TRUE(e.scheduler.residency().promised(e.ref(1)));
}

TEST(WaitingSet, YoungAreKeptIfSomebodyCanReserve) {
  for (const bool reserves : {false, true}) {
    SchedulerConfig c;
    c.t_starve_ns = kNever;
    c.n_starve = reserves ? 1 : kNever;
    std::vector<Request> requests(2);
    requests[0].adapter = 3;
    requests[1].adapter = kBaseRef;
    requests[0].wait_key.arrival_seq = 1;
    WaitingSet waiting(requests, c);
    waiting.insert(0), waiting.insert(1);
    EXPECT_EQ(waiting.size(), 2U);
    EXPECT_EQ(waiting.young().size(), size_t(reserves));
    EXPECT_EQ(waiting.num_before({.arrival_seq = 9}), 0U);  // nobody asks for it
  }
}

RequestSpec with_tokens(char id, const std::vector<int32_t>& prompt) {
  RequestSpec spec;
  spec.id = uint64_t(id);
  spec.num_prompt_tokens = uint32_t(prompt.size());
  spec.max_new_tokens = 10;
  spec.tokens = prompt;
  return spec;
}

// [6.8] Not only when the request ends.
TEST(Commit, PublishesABlockThatADecodeFills) {
  Engine e(Engine::config(2));  // blocks of 4
  e.submit(with_tokens('a', {1, 2, 3}));
  e.plan(), e.commit({4});
  e.plan(), e.commit({5});
  e.submit(with_tokens('b', {1, 2, 3, 4, 9}));
  EXPECT_EQ(e.plan(), (Engine::Rows{{'a', 1}, {'b', 1}}));
}

// Those of the table in docs/scheduler.md; max_cpu_loras is set by the program.
TEST(SchedulerConfig, DefaultsAreThoseOfTheTable) {
  const SchedulerConfig c;
  EXPECT_EQ(c.residency.max_loras, 8);
  EXPECT_EQ(c.residency.max_cpu_loras, 4 * c.residency.max_loras);
  EXPECT_EQ(c.residency.num_load_workers, 2);
  EXPECT_EQ(c.residency.gpu_eviction, EvictionPolicy::lru);
  EXPECT_EQ(c.residency.cpu_eviction, CpuEviction::idle_first);
  EXPECT_TRUE(c.residency.prefetch);
  EXPECT_EQ(c.load_mode, LoadMode::overlap);
  EXPECT_EQ(c.activation, ActivationOrder::needed);
  EXPECT_EQ(c.block_size, 16U);
  EXPECT_EQ(c.num_blocks, 0U);
  EXPECT_EQ(c.max_num_batched_tokens, 2048U);
  EXPECT_EQ(c.max_num_seqs, 256U);
  EXPECT_EQ(c.long_prefill_threshold, 0U);
  EXPECT_TRUE(c.chunked_prefill);
  EXPECT_EQ(c.max_model_len, UINT32_MAX);
  EXPECT_EQ(c.pack, PackMode::prefill_only);
  EXPECT_EQ(c.admission_order, AdmissionOrder::arrival);
  EXPECT_TRUE(c.prefix_cache);
  EXPECT_TRUE(c.use_priorities);
  EXPECT_EQ(c.t_starve_ns, 3'000'000'000);
  EXPECT_EQ(c.n_starve, 64);
  EXPECT_EQ(c.drain_factor, 1.2);
  EXPECT_FALSE(c.count_waiting_seen);
}

TEST(SchedulerConfig, TheLimitsThemselvesAreLegal) {
  SchedulerConfig least;
  least.residency = {.max_loras = 1, .max_cpu_loras = 1, .num_load_workers = 1};
  least.block_size = 1;
  least.num_blocks = 2;  // the null block and one more
  least.max_num_seqs = least.max_num_batched_tokens = 1;
  least.drain_factor = 0;
  least.chunked_prefill = false;
  least.max_model_len = 1;
  EXPECT_EQ(least.problem(), "");
  least.num_blocks = 1;
  EXPECT_NE(least.problem(), "");
  SchedulerConfig most = Engine::config(1);
  most.residency = {.max_loras = 4096, .max_cpu_loras = 4096};
  EXPECT_EQ(most.problem(), "");
}

// What others may ask of a live request and of the rows of the base model.
TEST(Scheduler, TellsTheStateOfARequest) {
  SchedulerConfig c = Engine::config(1, LoadMode::overlap);
  c.max_num_batched_tokens = c.max_num_seqs = 4;
  Engine e(c);
  e.submit('a', 0, 6, 3);
  EXPECT_EQ(e.request('a').state, RequestState::queued);
  e.step();
  EXPECT_EQ(e.rows[0].slot, kNoSlot);
  EXPECT_EQ(e.rows[0].generation, 0U);
  EXPECT_EQ(e.rows[0].adapter, kBaseRef);
  EXPECT_EQ(e.request('a').state, RequestState::prefilling);
  e.step();
  EXPECT_EQ(e.request('a').state, RequestState::decoding);
  EXPECT_EQ(e.request('a').num_remaining(), 2U);
}

// The entries of requests that have ended, at work or while they waited, are used again.
TEST(Scheduler, KeepsNothingOfARequestThatEnded) {
  SchedulerConfig c = Engine::config(1);
  Engine e(c);
  for (int i = 0; i < 3; ++i) {
    e.submit('a', 0, 3, 1);
    EXPECT_EQ(e.scheduler.find_request('a'), 0U);
    e.step();
    EXPECT_FALSE(e.is_live('a'));
    e.submit('b', 0, 3, 1);
    EXPECT_EQ(e.scheduler.find_request('b'), 0U);
    e.scheduler.abort('b', e.now_ns);
  }
}

// Keys are kept for ever: without a prefix cache there are none.
TEST(Scheduler, MakesNoKeysThatNobodyLooksUp) {
  const std::vector<uint64_t> contents{7};
  const std::vector<int32_t> tokens{1, 2, 3, 4, 5};
  for (const bool cached : {false, true}) {
    SchedulerConfig c = Engine::config(1);
    c.prefix_cache = cached;
    Engine e(c);
    RequestSpec known = with_tokens('a', tokens), blocks = known;
    blocks.id = 'b', blocks.tokens = {}, blocks.block_contents = contents;
    e.submit(known), e.submit(blocks);
    EXPECT_EQ(e.request('a').keys.size(), size_t(cached));
    EXPECT_EQ(e.request('b').keys.size(), size_t(cached));
    e.plan(), e.commit({6, 6});
    e.plan(), e.commit({7, 7});
    e.plan(), e.commit({8, 8});
    EXPECT_EQ(e.request('a').keys.size(), cached ? 2U : 0U);
  }
}

TEST(Scheduler, HasAnEmptyPlanToBeginWith) {
  const Engine e(Engine::config(1));
  const StepPlan& plan = e.scheduler.last_plan();
  EXPECT_TRUE(plan.empty());
  EXPECT_EQ(plan.step, 0);
  EXPECT_EQ(plan.num_tokens, 0U);
  EXPECT_EQ(plan.num_decode_rows, 0U);
  EXPECT_EQ(plan.num_waiting_seen, 0U);
  EXPECT_EQ(plan.num_discarded, 0U);
}

// Why the request that had the entry before came to its end does not matter.
TEST(Scheduler, AnAbortInFlightIsOneWhateverHappenedBefore) {
  Engine e(Engine::config(1));
  e.submit('a', 1, 3, 9);
  e.plan();
  e.finish_load(false), e.finish_load(false);
  e.scheduler.commit({}, e.now_ns);
  EXPECT_EQ(e.end_of('a'), FinishReason::error);
  e.submit('b', 0, 3, 9);
  EXPECT_EQ(e.scheduler.find_request('b'), 0U);  // the same entry
  e.plan();
  e.scheduler.abort('b', e.now_ns);
  e.commit();
  EXPECT_EQ(e.end_of('b'), FinishReason::abort);
}

TEST(Scheduler, WithoutPrioritiesAllAreTheSame) {
  SchedulerConfig c = Engine::config(1);
  c.use_priorities = false;
  Engine e(c);
  e.submit('a', 0, 3, 9, 7), e.submit('b', 0, 3, 9, -7);
  EXPECT_EQ(e.request('a').priority, 0);
  EXPECT_EQ(e.step(), (Engine::Rows{{'a', 3}, {'b', 3}}));
}

// [6.2] Namespace and content are two things: block 2 of adapter 1 is not block 1 of adapter 2.
TEST(PrefixCache, NamespaceAndContentDoNotChangePlaces) {
  Engine e(Engine::config(2));
  const auto submit = [&](char id, Uid adapter, uint64_t content) {
    const std::vector<uint64_t> contents{content};
    RequestSpec spec;
    spec.id = uint64_t(id), spec.adapter = adapter, spec.block_contents = contents;
    spec.num_prompt_tokens = 5, spec.max_new_tokens = 1;
    e.submit(spec);
    e.step();
    return e.decisions<decision::Admission>().back().num_cached_tokens;
  };
  EXPECT_EQ(submit('a', 1, 2), 0U);
  EXPECT_EQ(submit('b', 2, 1), 0U);
  EXPECT_EQ(submit('c', 1, 2), 4U);
}

TEST(Submit, NamesTheFirstOfSeveralThatIsBad) {
  Engine e(Engine::config(1));
  const std::vector<int32_t> tokens{1, 2};
  const auto submit = [&](uint32_t first_prompt, uint64_t second_id) {
    std::vector<RequestSpec> specs(2);
    specs[0].num_prompt_tokens = first_prompt, specs[1].num_prompt_tokens = 2;
    specs[0].id = 1, specs[1].id = second_id;
    size_t failed = 99;
    const SubmitStatus status = e.scheduler.submit(specs, 0, failed);
    return std::pair(status, failed);
  };
  EXPECT_EQ(submit(0, 2), std::pair(SubmitStatus::empty_prompt, size_t{0}));
  EXPECT_EQ(submit(2, 1), std::pair(SubmitStatus::duplicate_id, size_t{1}));
  EXPECT_EQ(e.scheduler.num_live(), 0);
  EXPECT_EQ(submit(2, 2).first, SubmitStatus::ok);
  EXPECT_EQ(e.scheduler.num_live(), 2);

  RequestSpec spec = with_tokens('a', tokens);
  spec.num_prompt_tokens = 3;  // of which two have content
  EXPECT_EQ(e.submit(spec), SubmitStatus::bad_content);
  const std::vector<uint64_t> contents{7};
  const std::vector<int32_t> more{1, 2, 3, 4, 5};
  spec = with_tokens('a', more);
  spec.block_contents = contents;  // said twice
  EXPECT_EQ(e.submit(spec), SubmitStatus::bad_content);
}

// [5.21] [5.22] A load that is being repeated goes on, and counts as the second one for whoever
// comes meanwhile.
TEST(Scheduler, ASecondFailureIsOneForWhoeverWaitsThen) {
  Engine e(Engine::config(1, LoadMode::overlap));
  e.submit('a', 1, 3, 9);
  e.finish_load(false);
  e.scheduler.abort('a', e.now_ns);
  e.submit('b', 1, 3, 9);
  e.finish_load(false);
  EXPECT_EQ(e.end_of('b'), FinishReason::error);
}

// Its load failed, so the row computes nothing, though the adapter gets a slot after all before the
// step begins.
TEST(Scheduler, ARowWhoseLoadFailedGetsNoSlotLater) {
  Engine e(Engine::config(3));
  e.submit('x', 1, 3, 9), e.submit('y', 2, 3, 9);
  e.plan();
  e.scheduler.load_done(1, false, e.now_ns);
  e.scheduler.load_done(1, false, e.now_ns);
  EXPECT_EQ(e.scheduler.pin(1, e.now_ns), PinStatus::ok);
  e.scheduler.load_done(1, true, e.now_ns);
  e.scheduler.copy_done(1, e.now_ns);
  EXPECT_TRUE(e.scheduler.residency().ready(e.ref(1)));
  EXPECT_FALSE(e.scheduler.step_can_start());
  e.scheduler.load_done(2, true, e.now_ns);
  e.scheduler.copy_done(2, e.now_ns);
  EXPECT_TRUE(e.scheduler.step_can_start());
  EXPECT_EQ(e.scheduler.last_plan().rows[0].slot, kNoSlot);
  EXPECT_GE(e.scheduler.last_plan().rows[1].slot, 0);
  e.scheduler.commit({}, e.now_ns);
  EXPECT_EQ(e.end_of('x'), FinishReason::error);
  EXPECT_EQ(e.request('y').num_generated, 1U);
}

}  // namespace
}  // namespace loratory::sim
