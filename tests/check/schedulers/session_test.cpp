// Sessions and their labels, and our own scheduler in them.
#include <gmock/gmock.h>

#include "check/report/ledger.hpp"
#include "check/schedulers/driver.hpp"
#include "check/schedulers/own_scheduler.hpp"
#include "check/schedulers/run_scheduler_checks.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::check {
namespace {

using testing::HasSubstr;

TEST(SessionLabel, RoundTrips) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Session s = draw_session(seed);
    EXPECT_EQ(parse_session(label_of(s)), s);
    EXPECT_EQ(parse_session(fmt::format("sched.seed{}", seed)), s);
    s.dropped = {{0, 3}, {7, 7}};
    EXPECT_EQ(parse_session(label_of(s)), s);
  }
  Session s = draw_session(7);
  s = parse_session("sched.seed7.ops5.loras2.faults.drop1-2+4");
  EXPECT_EQ(s.num_ops, 5);
  EXPECT_EQ(s.max_cpu_loras, draw_session(7).max_cpu_loras);
  EXPECT_TRUE(s.faults && !s.ahead && s.is_dropped(1) && !s.is_dropped(3) && s.is_dropped(4));
}

TEST(SessionLabel, BadOnesAreRefused) {
  for (const auto& [label, says] : std::vector<std::pair<std::string, std::string>>{
           {"linear.K4", "'linear.K4': is no label of a session; it begins with sched.seed7"},
           {"sched.seed-1", "is no label"},
           {"sched.seed1.lora2", "'lora' is no part of a session's label; did you mean 'loras'?"},
           {"sched.seed1.bs0", "bs must be a number from 1 to 1024"},
           {"sched.seed1.bs", "bs must be a number from 1 to 1024"},
           {"sched.seed1.drop3-1", "'3-1' is no range; write drop3-17+40"},
       }) {
    try {
      parse_session(label);
      ADD_FAILURE() << label;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(says));
    }
  }
}

// What is left is what the finding needs, and nothing else.
TEST(ShrinkSession, LeavesWhatIsNeeded) {
  Session session = draw_session(3);
  session.num_ops = 100;
  session.max_loras = 4;
  session.faults = session.ahead = true;
  int64_t num_tries = 0;
  const Session smallest = shrink_session(session, [&](const Session& s) {
    ++num_tries;
    return s.num_ops > 70 && !s.is_dropped(70) && !s.is_dropped(13) && s.max_loras >= 2 && s.faults;
  });
  EXPECT_EQ(smallest.num_ops, 71);
  EXPECT_EQ(smallest.dropped, (std::vector<std::pair<int32_t, int32_t>>{{0, 12}, {14, 69}}));
  EXPECT_EQ(smallest.max_loras, 2);
  EXPECT_EQ(smallest.num_names, 1);
  EXPECT_TRUE(smallest.faults);
  EXPECT_FALSE(smallest.ahead);
  EXPECT_LE(num_tries, 600);
  // Nothing smaller shows it, or no question may be asked: it stays.
  EXPECT_EQ(shrink_session(session, [](const Session&) { return false; }), session);
  EXPECT_EQ(shrink_session(
                session, [](const Session&) { return true; }, 0),
            session);
}

TEST(Ledger, NamesFindingsByCheckAndCase) {
  const std::string text =
      "# comment\n\nprefixes  sched.seed7.*bs4*  https://example.org/1 words\nslots * x\n";
  std::vector<LedgerLine> ledger = parse_ledger(text, "l", {"prefixes", "slots"});
  ASSERT_EQ(ledger.size(), 2u);
  EXPECT_EQ(ledger[0].reference, "https://example.org/1 words");
  EXPECT_EQ(ledger[1].number, 4u);
  EXPECT_THAT(lines_for(ledger, "prefixes", "sched.seed7.ops1.bs4"), testing::ElementsAre(3));
  EXPECT_THAT(lines_for(ledger, "prefixes", "sched.seed7.ops1.bs3"), testing::IsEmpty());
  EXPECT_THAT(lines_for(ledger, "blocks", "sched.seed7.ops1.bs4"), testing::IsEmpty());

  Report report;
  report.checks = {{.name = "prefixes", .num_cases = 5, .note = ""},
                   {.name = "slots", .state = CheckState::skipped, .note = ""}};
  note_case(ledger, "sched.seed7.ops1.bs3");
  apply_ledger(ledger, report);
  EXPECT_TRUE(report.stale.empty()) << "no case that the line names was judged";
  note_case(ledger, "sched.seed7.ops1.bs4");
  apply_ledger(ledger, report);
  EXPECT_EQ(report.stale, std::vector<std::string>{
                              "line 3: prefixes sched.seed7.*bs4* https://example.org/1 words"});
  report.stale.clear();
  report.findings.push_back({.check = "prefixes",
                             .label = "sched.seed7.x",
                             .smallest = "sched.seed7.bs4",
                             .what = "",
                             .pattern = "",
                             .repro = "",
                             .reference = ""});
  EXPECT_FALSE(report.ok());
  apply_ledger(ledger, report);
  EXPECT_EQ(report.findings[0].reference, "https://example.org/1 words");
  EXPECT_TRUE(report.ok());
}

// An adapter that failed to load for good, and that a later request wants again, is waited for.
TEST(OwnScheduler, LoadsAgainWhatItGaveUp) {
  const auto scheduler = own_scheduler({.blocking = true});
  const SessionResult result = run_session(
      *scheduler, parse_session("sched.seed5157.ops39.loras2.cpu2.workers1.blocks8.bs1.tokens3"
                                ".seqs2.len8.names6.faults.ahead.drop0-9+23-27+32+34-37"));
  EXPECT_FALSE(result.finding) << result.finding->what;
}

// Nobody objects to our own scheduler, and everything that judges look for happens.
TEST(OwnScheduler, PassesThroughItsOwnDoor) {
  const std::vector<OwnOptions> variants = {{},
                                            {.blocking = true},
                                            {.packed = true, .n_starve = 1},
                                            {.chunked_prefill = false},
                                            {.prefix_cache = false}};
  SessionCounts counts;
  for (size_t i = 0; i < variants.size(); ++i) {
    const auto scheduler = own_scheduler(variants[i]);
    for (uint64_t seed = 0; seed < 120; ++seed) {
      const Session session = draw_session(seed);
      const SessionResult result = run_session(*scheduler, session);
      counts.add(result.counts);
      if (!result.finding) continue;
      ADD_FAILURE() << "variant " << i << ' ' << label_of(session) << '\n'
                    << result.finding->judge << ": " << result.finding->what << '\n'
                    << result.finding->message << '\n'
                    << result.finding->reply;
      break;
    }
  }
  EXPECT_GT(counts.steps_ahead, 1000);
  EXPECT_GT(counts.prefix_hits, 1000);
  EXPECT_GT(counts.chunks, 1000);
  EXPECT_GT(counts.preemptions, 100);
  EXPECT_GT(counts.evictions, 1000);
  EXPECT_GT(counts.failed_loads, 100);
  EXPECT_GT(counts.aborts_in_flight, 100);
  EXPECT_GT(counts.unloads_in_use, 100);
  EXPECT_GT(counts.pins, 100);
  EXPECT_GT(counts.names_reused, 100);
  EXPECT_GT(counts.refusals, 100);
  EXPECT_EQ(counts.full_pools, 5 * 120);
}

}  // namespace
}  // namespace loratory::check
