// Worked examples of docs/scheduler.md, part "Residency".
#include "scheduler_sim/residency/residency.hpp"

#include <gmock/gmock.h>

#include <string>

#include "fuzz/support/tier_counts.hpp"

namespace loratory::sim {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// One request at a time, whose transfers end at once.
class OneByOne {
 public:
  OneByOne(int32_t max_loras, int32_t max_cpu_loras, EvictionPolicy policy)
      : tiers({max_loras, max_cpu_loras, 2, policy}) {
    for (int i = 1; i <= 6; ++i) tiers.register_adapter(std::to_string(i), 8, 1);
  }

  void use(int adapter) {
    loads.clear(), cpu_evictions.clear(), copies.clear();
    const AdapterRef a = tiers.find(std::to_string(adapter));
    tiers.submitted(a);
    settle();
    if (!tiers.ready(a)) tiers.promise(a);
    settle();
    tiers.admitted(a);
    tiers.touch_gpu(a);
    tiers.left_running(a);
    settle();
  }

  void settle() {
    tiers.start_transfers();
    ResidencyActions now = tiers.actions();
    tiers.actions().clear();
    for (const Eviction& e : now.evictions) {
      if (e.from_cpu) cpu_evictions.push_back(int(e.uid));
    }
    for (const LoadStart& load : now.loads) {
      loads.push_back(int(load.uid));
      tiers.load_done(tiers.find_uid(load.uid), true);
      settle();
    }
    for (const CopyStart& copy : now.copies) {
      copies.push_back(int(copy.uid));
      EXPECT_EQ(copy.generation, tiers.slot_generation(copy.slot));
      tiers.copy_done(tiers.find_uid(copy.uid));
      settle();
    }
  }

  std::vector<int> slots() const {
    std::vector<int> owners;
    for (int32_t i = 0; i < tiers.config().max_loras; ++i) {
      owners.push_back(int(slot_owner(tiers, i)));
    }
    return owners;
  }

  Residency tiers;
  std::vector<int> loads, cpu_evictions, copies;
};

struct Row {
  int adapter;
  std::vector<int> slots, loads, cpu_evictions;
};

void expect_table(OneByOne engine, const std::vector<Row>& table) {
  for (size_t step = 1; step <= table.size(); ++step) {
    const Row& row = table[step - 1];
    engine.use(row.adapter);
    SCOPED_TRACE("step " + std::to_string(step));
    EXPECT_EQ(engine.slots(), row.slots);
    EXPECT_EQ(engine.loads, row.loads);
    EXPECT_EQ(engine.cpu_evictions, row.cpu_evictions);
  }
}

TEST(Residency, LruKeepsWhatWasUsedLast) {
  expect_table({2, 3, EvictionPolicy::lru}, {{1, {1, 0}, {1}, {}},
                                             {2, {1, 2}, {2}, {}},
                                             {1, {1, 2}, {}, {}},
                                             {3, {1, 3}, {3}, {}},
                                             {2, {2, 3}, {}, {}},
                                             {4, {2, 4}, {4}, {1}},
                                             {1, {1, 4}, {1}, {3}}});
}

TEST(Residency, FifoForgetsWhatWasLoadedFirst) {
  expect_table({2, 3, EvictionPolicy::fifo}, {{1, {1, 0}, {1}, {}},
                                              {2, {1, 2}, {2}, {}},
                                              {1, {1, 2}, {}, {}},
                                              {3, {3, 2}, {3}, {}},
                                              {2, {3, 2}, {}, {}},
                                              {4, {3, 4}, {4}, {1}},
                                              {1, {1, 4}, {1}, {2}}});
}

TEST(Residency, LfuKeepsWhatWasUsedMost) {
  OneByOne engine(2, 6, EvictionPolicy::lfu);
  for (const int adapter : {1, 1, 2, 3}) engine.use(adapter);
  EXPECT_THAT(engine.slots(), ElementsAre(1, 3));
  engine.use(2);  // the count of 2 began anew; that of 3 is 1 and older
  EXPECT_THAT(engine.slots(), ElementsAre(1, 2));
}

TEST(Residency, HitOnTheGpuDoesNotRefreshTheCpu) {  // [5.11]
  OneByOne engine(2, 4, EvictionPolicy::lru);
  for (const int adapter : {1, 2, 1, 3, 4}) engine.use(adapter);
  EXPECT_THAT(engine.cpu_evictions, IsEmpty());
  engine.use(5);
  EXPECT_THAT(engine.cpu_evictions, ElementsAre(1));
}

// Every load into a slot has a number of its own, so that a table made for the tenant before can be
// told from a current one; a hit does not change it.
TEST(Residency, SlotGenerationCountsLoads) {  // [2.12] [5.9]
  OneByOne gpu(2, 4, EvictionPolicy::lru);
  for (const int adapter : {1, 2, 1, 3}) gpu.use(adapter);
  EXPECT_THAT(gpu.slots(), ElementsAre(1, 3));
  EXPECT_EQ(gpu.tiers.slot_generation(0), 1u);
  EXPECT_EQ(gpu.tiers.slot_generation(1), 2u);
}

TEST(Residency, UidsAreNeverReused) {  // [5.1] [5.3]
  Residency tiers({});
  const AdapterRef a = tiers.register_adapter("a", 8, 1).adapter;
  EXPECT_EQ(tiers.uid(a), 1U);
  EXPECT_EQ(tiers.register_adapter("a", 8, 1).status, RegisterStatus::exists);
  tiers.submitted(a);
  const AdapterRef b = tiers.register_adapter("a", 8, 1, /*replace=*/true).adapter;
  EXPECT_EQ(tiers.uid(b), 2U);
  EXPECT_EQ(tiers.find("a"), b);
  EXPECT_TRUE(tiers.retiring(a));
  EXPECT_TRUE(tiers.unload("a"));
  EXPECT_FALSE(tiers.unload("a"));
  EXPECT_THAT(tiers.take_unloaded(), ElementsAre(2U));
  EXPECT_EQ(tiers.uid(tiers.register_adapter("a", 8, 1).adapter), 3U);
}

TEST(Residency, PinsLeaveOneSlot) {  // [5.19]
  Residency tiers({.max_loras = 2, .max_cpu_loras = 4});
  const AdapterRef a = tiers.register_adapter("a", 8, 1).adapter;
  const AdapterRef b = tiers.register_adapter("b", 8, 1).adapter;
  EXPECT_EQ(tiers.pin(a), PinStatus::ok);
  EXPECT_EQ(tiers.pin(a), PinStatus::ok);
  EXPECT_EQ(tiers.pin(b), PinStatus::busy);
  tiers.unpin(a);
  tiers.unpin(a);
  EXPECT_EQ(tiers.pin(b), PinStatus::ok);
  tiers.unload("b");
  EXPECT_EQ(num_pinned(tiers), 0);
  Residency one_slot({.max_loras = 1, .max_cpu_loras = 1});
  EXPECT_EQ(one_slot.pin(one_slot.register_adapter("a", 8, 1).adapter), PinStatus::busy);
}

TEST(Residency, UnpinningCancelsALoadThatHasNotBegun) {  // [5.22], one worker
  Residency tiers({.max_loras = 3, .max_cpu_loras = 4, .num_load_workers = 1});
  const AdapterRef a = tiers.register_adapter("a", 8, 1).adapter;
  const AdapterRef b = tiers.register_adapter("b", 8, 1).adapter;
  tiers.pin(a), tiers.pin(b), tiers.start_transfers();
  tiers.unpin(b);
  tiers.load_done(a, true), tiers.start_transfers();
  EXPECT_EQ(tiers.state(b), AdapterState::on_disk);
  EXPECT_EQ(tiers.state(a), AdapterState::copying);
}

TEST(Residency, FailedLoadIsRetriedOnceAndCostsNothing) {  // [4.17] [5.13] [5.21]
  OneByOne engine(2, 2, EvictionPolicy::lru);
  engine.use(1);
  Residency& tiers = engine.tiers;
  const AdapterRef two = tiers.find("2");
  tiers.submitted(two);
  tiers.start_transfers();
  EXPECT_EQ(tiers.load_done(two, false), LoadOutcome::retried);
  tiers.start_transfers();
  EXPECT_EQ(tiers.state(two), AdapterState::loading);
  EXPECT_EQ(tiers.load_done(two, false), LoadOutcome::failed);
  tiers.left_waiting(two);
  tiers.start_transfers();
  EXPECT_EQ(num_on_cpu(tiers), 1);
  tiers.submitted(two);  // afresh
  tiers.start_transfers();
  EXPECT_EQ(tiers.load_done(two, false), LoadOutcome::retried);
}

// Two requests for each of two adapters, one worker. Requests for the second end while it waits.
size_t num_loads_of_two(bool one_stays) {
  Residency tiers({.max_loras = 1, .max_cpu_loras = 4, .num_load_workers = 1});
  const AdapterRef a = tiers.register_adapter("a", 8, 1).adapter;
  const AdapterRef b = tiers.register_adapter("b", 8, 1).adapter;
  for (const AdapterRef r : {a, a, b, b}) tiers.submitted(r);
  tiers.start_transfers();
  EXPECT_EQ(tiers.actions().loads.size(), 1U);
  tiers.left_waiting(b);
  if (!one_stays) tiers.left_waiting(b);
  tiers.load_done(a, true), tiers.start_transfers();
  return tiers.actions().loads.size();
}

TEST(Residency, OneJobPerAdapterAndNoneForNobody) {  // [5.20] [5.22]
  EXPECT_EQ(num_loads_of_two(/*one_stays=*/true), 2U);
  EXPECT_EQ(num_loads_of_two(/*one_stays=*/false), 1U);
}

TEST(Residency, UnloadDuringALoadDropsTheResult) {  // [5.22] [5.26]
  Residency tiers({});
  const AdapterRef a = tiers.register_adapter("a", 8, 1).adapter;
  tiers.submitted(a);
  tiers.start_transfers();
  tiers.unload("a");
  tiers.left_waiting(a);
  EXPECT_THAT(tiers.take_unloaded(), IsEmpty());  // the read is under way
  EXPECT_EQ(tiers.load_done(a, true), LoadOutcome::dropped);
  EXPECT_THAT(tiers.take_unloaded(), ElementsAre(1U));
  EXPECT_EQ(num_on_cpu(tiers), 0);
}

// A demand load may take the place of an adapter that requests wait for, a prefetch may not; a
// promised adapter is safe from both ([5.16]).
TEST(Residency, PromisedAdaptersDoNotEvictEachOther) {
  Residency tiers({.max_loras = 2, .max_cpu_loras = 2, .num_load_workers = 1});
  AdapterRef r[4];
  for (int i = 1; i <= 3; ++i) r[i] = tiers.register_adapter(std::to_string(i), 8, 1).adapter;
  tiers.submitted(r[3]), tiers.start_transfers(), tiers.load_done(r[3], true);
  tiers.submitted(r[1]), tiers.start_transfers(), tiers.load_done(r[1], true);
  tiers.submitted(r[2]), tiers.start_transfers();
  EXPECT_EQ(tiers.state(r[2]), AdapterState::on_disk);  // nobody is idle
  tiers.promise(r[1]), tiers.promise(r[2]), tiers.start_transfers();
  EXPECT_EQ(tiers.state(r[2]), AdapterState::loading);
  EXPECT_EQ(tiers.state(r[3]), AdapterState::on_disk);
  EXPECT_EQ(tiers.state(r[1]), AdapterState::copying);
}

// A step in blocking mode waits for adapter 1, of which another request is aborted meanwhile.
TEST(Residency, AbortOfAnotherRequestKeepsThePromiseToAStep) {
  Residency tiers({.max_loras = 1, .max_cpu_loras = 1});
  const AdapterRef a = tiers.register_adapter("a", 8, 1).adapter;
  tiers.submitted(a), tiers.submitted(a);
  tiers.admitted(a), tiers.assign_slot_now(a);
  tiers.start_transfers();
  tiers.left_waiting(a);
  tiers.load_done(a, true), tiers.start_transfers();
  EXPECT_EQ(tiers.state(a), AdapterState::copying);
  tiers.copy_done(a);
  EXPECT_FALSE(tiers.promised(a));
}

// ... of which another one waits on: the step has its adapter, the waiting one no promise yet.
TEST(Residency, ThePromiseToAStepEndsWithItsCopy) {  // [5.23]
  Residency tiers({.max_loras = 1, .max_cpu_loras = 1});
  const AdapterRef a = tiers.register_adapter("a", 8, 1).adapter;
  tiers.submitted(a), tiers.submitted(a);
  tiers.admitted(a), tiers.assign_slot_now(a);
  tiers.start_transfers();
  tiers.load_done(a, true), tiers.start_transfers();
  EXPECT_TRUE(tiers.promised(a));
  tiers.copy_done(a);
  EXPECT_FALSE(tiers.promised(a));
  tiers.left_running(a);
  EXPECT_EQ(tiers.num_claimants(), 0);
}

// The load for a step has failed; until the step commits its request runs without the adapter. A
// pin in between must bring the adapter to the GPU.
TEST(Residency, APinAfterAFailedLoadIsHeld) {  // [5.19] [5.21]
  Residency tiers({.max_loras = 2, .max_cpu_loras = 2});
  const AdapterRef a = tiers.register_adapter("a", 8, 1).adapter;
  tiers.submitted(a), tiers.admitted(a), tiers.assign_slot_now(a);
  tiers.start_transfers();
  tiers.load_done(a, false), tiers.start_transfers();
  ASSERT_EQ(tiers.load_done(a, false), LoadOutcome::failed);
  ASSERT_FALSE(tiers.promised(a));
  ASSERT_EQ(tiers.pin(a), PinStatus::ok);
  EXPECT_TRUE(tiers.promised(a));
  tiers.left_running(a);
  tiers.start_transfers();
  tiers.load_done(a, true), tiers.start_transfers();
  tiers.copy_done(a);
  EXPECT_TRUE(tiers.ready(a));
}

// A load failed once and waits for its second try when the last request goes: it is cancelled, and
// what comes later has two tries of its own.
TEST(Residency, ACancelledLoadForgetsItsFailures) {  // [5.21] [5.22]
  Residency tiers({});
  const AdapterRef a = tiers.register_adapter("a", 8, 1).adapter;
  tiers.submitted(a), tiers.start_transfers();
  ASSERT_EQ(tiers.load_done(a, false), LoadOutcome::retried);
  tiers.left_waiting(a);
  tiers.start_transfers();
  ASSERT_EQ(tiers.state(a), AdapterState::on_disk);
  tiers.submitted(a), tiers.start_transfers();
  EXPECT_EQ(tiers.load_done(a, false), LoadOutcome::retried);
}

// Three places: w is in demand and the oldest, g is on the GPU, i is idle and the youngest. A
// prefetch of a fourth adapter takes the place of ...
std::string victim_of_a_prefetch(CpuEviction policy) {
  Residency tiers({.max_loras = 1, .max_cpu_loras = 3, .cpu_eviction = policy});
  const auto bring = [&](const char* name) {
    const AdapterRef a = tiers.register_adapter(name, 8, 1).adapter;
    tiers.submitted(a), tiers.start_transfers(), tiers.load_done(a, true);
    return a;
  };
  bring("w");
  const AdapterRef g = bring("g");
  tiers.promise(g), tiers.start_transfers(), tiers.copy_done(g);
  tiers.admitted(g), tiers.left_running(g);
  tiers.left_waiting(bring("i"));
  tiers.actions().clear();
  tiers.submitted(tiers.register_adapter("new", 8, 1).adapter);
  tiers.start_transfers();
  if (tiers.actions().evictions.empty()) return "nobody";
  EXPECT_EQ(num_on_cpu(tiers), 3);
  EXPECT_EQ(tiers.num_on_gpu(), tiers.ready(g));
  return tiers.name(tiers.find_uid(tiers.actions().evictions[0].uid));
}

TEST(Residency, CpuEvictionPolicies) {  // [5.16] [5.41]
  EXPECT_EQ(victim_of_a_prefetch(CpuEviction::idle_first), "i");
  EXPECT_EQ(victim_of_a_prefetch(CpuEviction::gpu_last), "w");
  EXPECT_EQ(victim_of_a_prefetch(CpuEviction::lru), "w");
}

// The same places, but w is gone: the oldest is on the GPU, and loses its slot with its place.
TEST(Residency, EvictionFromTheCpuFreesTheSlot) {  // [5.41]
  for (const CpuEviction policy : {CpuEviction::gpu_last, CpuEviction::lru}) {
    Residency tiers({.max_loras = 1, .max_cpu_loras = 2, .cpu_eviction = policy});
    const AdapterRef g = tiers.register_adapter("g", 8, 1).adapter;
    const AdapterRef w = tiers.register_adapter("w", 8, 1).adapter;
    for (const AdapterRef a : {g, w}) {
      tiers.submitted(a), tiers.start_transfers(), tiers.load_done(a, true);
    }
    tiers.promise(g), tiers.start_transfers(), tiers.copy_done(g);
    tiers.admitted(g), tiers.left_running(g);
    tiers.submitted(w);  // younger than the copy of g
    tiers.actions().clear();
    tiers.submitted(tiers.register_adapter("new", 8, 1).adapter);
    tiers.start_transfers();
    ASSERT_EQ(tiers.actions().evictions.size(), 1U);
    const bool gpu_last = policy == CpuEviction::gpu_last;
    EXPECT_EQ(tiers.actions().evictions[0].uid, tiers.uid(gpu_last ? w : g));
    EXPECT_EQ(tiers.num_on_gpu(), gpu_last ? 1 : 0);
  }
}

TEST(Residency, WithoutPrefetchOnlyAPromiseLoads) {  // [5.42]
  Residency tiers({.max_loras = 2, .max_cpu_loras = 2, .prefetch = false});
  const AdapterRef a = tiers.register_adapter("a", 8, 1).adapter;
  const AdapterRef b = tiers.register_adapter("b", 8, 1).adapter;
  tiers.submitted(a), tiers.submitted(b), tiers.start_transfers();
  EXPECT_EQ(tiers.state(a), AdapterState::on_disk);
  EXPECT_EQ(tiers.state(b), AdapterState::on_disk);
  tiers.promise(b), tiers.start_transfers();
  EXPECT_EQ(tiers.state(b), AdapterState::loading);
  EXPECT_EQ(tiers.state(a), AdapterState::on_disk);
  EXPECT_EQ(tiers.load_done(b, false), LoadOutcome::retried);  // [5.21] as ever
  ASSERT_EQ(tiers.pin(a), PinStatus::ok);
  tiers.start_transfers();
  EXPECT_EQ(tiers.state(a), AdapterState::loading);
  EXPECT_EQ(tiers.state(b), AdapterState::loading);
}

}  // namespace
}  // namespace loratory::sim
