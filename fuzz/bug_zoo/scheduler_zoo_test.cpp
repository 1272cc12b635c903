#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "check/schedulers/driver.hpp"
#include "fuzz/bug_zoo/naive_scheduler.hpp"
#include "fuzz/bug_zoo/zoo_table.hpp"

namespace loratory::zoo {
namespace {

constexpr int64_t kMostSessions = 200;

ZooRow judge(const ZooScheduler& zoo, int64_t num_sessions,
             check::SessionCounts* counts = nullptr) {
  ZooRow row{.note = zoo.note};
  const auto scheduler = zoo.make();
  for (int64_t i = 1; i <= num_sessions; ++i) {
    const check::Session session = check::draw_session(uint64_t(i));
    const check::SessionResult result = check::run_session(*scheduler, session);
    if (counts != nullptr) counts->add(result.counts);
    if (!result.finding) continue;
    row.caught_by = result.finding->judge;
    row.finding = fmt::format("{}: {} ({})", result.finding->judge, result.finding->what,
                              check::label_of(session));
    row.num_cases = i;
    break;
  }
  return row;
}

TEST(BugZoo, EveryWrongSchedulerIsCaughtWithin200Sessions) {
  std::vector<ZooRow> rows;
  for (const ZooScheduler& zoo : wrong_schedulers()) {
    rows.push_back(judge(zoo, kMostSessions));
    EXPECT_FALSE(rows.back().caught_by.empty())
        << zoo.note.name << ": nothing noticed that " << zoo.note.what;
    if (std::getenv("LORATORY_ZOO_VERBOSE") != nullptr) {
      fmt::print("{:32} {:4} {}\n", zoo.note.name, rows.back().num_cases, rows.back().finding);
    }
  }
  EXPECT_GE(rows.size(), 20U);
  expect_in_docs("schedulers", rows);
}

TEST(BugZoo, NoRightSchedulerIsFlagged) {
  check::SessionCounts counts;
  for (const ZooScheduler& zoo : right_schedulers()) {
    const ZooRow row = judge(zoo, 100, &counts);
    EXPECT_EQ(row.caught_by, "") << zoo.note.name << ": " << row.finding;
  }
  // They did what there is to do wrong.
  EXPECT_GT(counts.prefix_hits, 50);
  EXPECT_GT(counts.preemptions, 50);
  EXPECT_GT(counts.chunks, 50);
  EXPECT_GT(counts.evictions, 50);
  EXPECT_GT(counts.failed_loads, 50);
  EXPECT_GT(counts.aborts_in_flight, 50);
  EXPECT_GT(counts.unloads_in_use, 50);
  EXPECT_GT(counts.pins, 50);
}

}  // namespace
}  // namespace loratory::zoo
