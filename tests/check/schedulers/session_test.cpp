// Sessions and their labels, and our own scheduler in them.
#include <gmock/gmock.h>

#include "check/schedulers/driver.hpp"
#include "check/schedulers/own_scheduler.hpp"
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
