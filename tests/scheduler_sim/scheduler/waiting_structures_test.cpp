#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <unordered_map>
#include <vector>

#include "scheduler_sim/scheduler/id_map.hpp"
#include "scheduler_sim/scheduler/place_counter.hpp"
#include "scheduler_sim/scheduler/wait_queue.hpp"

namespace loratory::sim {
namespace {

WaitKey place_of(uint64_t arrival_seq, int32_t priority = 0) {
  return {priority, 1, false, arrival_seq};
}

TEST(PlaceCounter, CountsAcrossChunks) {
  PlaceCounter counter;
  EXPECT_EQ(counter.num_before(place_of(5)), 0u);
  for (uint64_t i = 0; i < 1000; ++i) counter.insert(place_of(i));
  EXPECT_EQ(counter.num_chunks(), 8u);  // of up to 128, full but for the last
  for (const uint64_t i : {0, 1, 127, 128, 129, 500, 999, 1000}) {
    EXPECT_EQ(counter.num_before(place_of(i)), i);
  }
  for (uint64_t i = 0; i < 1000; i += 2) counter.erase(place_of(i));
  EXPECT_EQ(counter.size(), 500u);
  EXPECT_EQ(counter.num_before(place_of(501)), 250u);
  EXPECT_EQ(counter.num_before(WaitKey::before_all()), 0u);
}

// Most places leave, so that what is left of chunks side by side becomes one.
TEST(PlaceCounter, CountsWhatIsLeftOfChunks) {
  PlaceCounter counter;
  std::set<WaitKey> judge;
  for (uint64_t i = 0; i < 1000; ++i) {
    counter.insert(place_of(i));
    judge.insert(place_of(i));
  }
  for (uint64_t i = 0; i < 1000; ++i) {
    const WaitKey place = place_of(i * 7 % 1000);
    if (i * 7 % 1000 % 50 == 0) continue;  // one of each 50 stays
    counter.erase(place);
    judge.erase(place);
    if (i % 10 != 0) continue;
    for (const uint64_t at : {0, 49, 50, 51, 500, 949, 950, 951, 1000}) {
      const auto before = std::distance(judge.begin(), judge.lower_bound(place_of(at)));
      ASSERT_EQ(counter.num_before(place_of(at)), size_t(before)) << i << " " << at;
    }
  }
  EXPECT_EQ(counter.size(), 20u);
  EXPECT_EQ(counter.num_chunks(), 1u);
  for (uint64_t i = 0; i < 1000; ++i) {
    if (i % 50 != 0) counter.insert(place_of(i));
  }
  for (const uint64_t i : {0, 1, 127, 500, 999}) EXPECT_EQ(counter.num_before(place_of(i)), i);
  for (uint64_t i = 0; i < 1000; ++i) counter.erase(place_of(i));
  EXPECT_EQ(counter.num_chunks(), 0u);
}

// Places of three priorities come and go in any order; a std::set is the judge.
TEST(PlaceCounter, AgreesWithASet) {
  std::mt19937 random(1);
  PlaceCounter counter;
  std::set<WaitKey> judge;
  for (int step = 0; step < 20'000; ++step) {
    const WaitKey place = place_of(random() % 4000, int32_t(random() % 3));
    const bool grows = step < 8'000 || step % 3 == 0;
    if (grows && judge.insert(place).second) counter.insert(place);
    if (!grows && judge.erase(place) > 0) counter.erase(place);
    ASSERT_EQ(counter.size(), judge.size());
    if (step % 50 != 0) continue;
    ASSERT_GE(counter.num_chunks(), (judge.size() + 127) / 128);
    ASSERT_LE(counter.num_chunks(), judge.size() / 24 + 1);
    const auto before = std::distance(judge.begin(), judge.lower_bound(place));
    ASSERT_EQ(counter.num_before(place), size_t(before));
  }
}

// Most come last and leave first; the others come before somebody, or leave from anywhere and may
// come back. A std::map is the judge.
TEST(WaitQueue, AgreesWithAMap) {
  std::mt19937 random(1);
  WaitQueue queue;
  std::map<WaitKey, RequestRef> judge;
  for (int step = 0; step < 20'000; ++step) {
    const int32_t priority = random() % 8 == 0 ? -1 : 0;
    const uint64_t arrival = random() % 4 == 0 ? random() % 20'000 : uint64_t(step);
    const WaitKey place = place_of(arrival, priority);
    const bool grows = random() % 1000 < (step < 10'000 ? 600u : 400u);
    if (grows && judge.emplace(place, RequestRef(step)).second)
      queue.insert(place, RequestRef(step));
    if (!grows && !judge.empty()) {
      const auto any = judge.lower_bound(place);
      const auto leaves = random() % 3 > 0 || any == judge.end() ? judge.begin() : any;
      queue.erase(leaves->first);
      judge.erase(leaves);
    }
    ASSERT_EQ(queue.empty(), judge.empty());
    ASSERT_LE(queue.footprint(), 2 * judge.size() + 1);
    if (judge.empty()) continue;
    ASSERT_EQ(queue.front(), judge.begin()->second);
    ASSERT_EQ(queue.front_place(), judge.begin()->first);
    const auto next = judge.upper_bound(place);
    ASSERT_EQ(queue.first_behind(place).ref, next == judge.end() ? kNoRequest : next->second);
    if (step % 500 != 0) continue;
    std::vector<RequestRef> all;
    for (const auto& [key, ref] : judge) all.push_back(ref);
    ASSERT_EQ(queue.all(), all);
  }
}

TEST(IdMap, AgreesWithAnUnorderedMap) {
  std::mt19937_64 random(1);
  IdMap ids;
  std::unordered_map<uint64_t, RequestRef> judge;
  for (int step = 0; step < 50'000; ++step) {
    const uint64_t id = step % 2 == 0 ? random() % 3000 : (random() % 300) << 32;
    if (random() % 2 == 0 && judge.emplace(id, RequestRef(step)).second) {
      ids.insert(id, RequestRef(step));
    } else if (judge.erase(id) > 0) {
      ids.erase(id);
    }
    ASSERT_EQ(ids.size(), judge.size());
    const uint64_t other = random() % 3000;
    const auto found = judge.find(other);
    ASSERT_EQ(ids.find(other), found == judge.end() ? kNoRequest : found->second);
  }
}

}  // namespace
}  // namespace loratory::sim
