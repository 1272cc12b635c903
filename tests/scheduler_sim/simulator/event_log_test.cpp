// The event log as files have it: its columns, its words and its hash (docs/simulation.md).
#include "scheduler_sim/simulator/event_log.hpp"

#include <gmock/gmock.h>

#include <sstream>

namespace loratory::sim {
namespace {

TEST(EventLog, ALineIsTimeKindRequestUidAndTwoNumbers) {
  const auto of_request = [](const decision::Any& what) {
    return EventLog::line_of({7, 3, 2, what});
  };
  EXPECT_EQ(of_request(decision::Arrival{410, 167}), "7 arrival 3 2 410 167");
  EXPECT_EQ(of_request(decision::Admission{64, 346}), "7 admission 3 2 64 346");
  EXPECT_EQ(of_request(decision::Chunk{100, 410}), "7 chunk 3 2 100 410");
  EXPECT_EQ(of_request(decision::Reservation{5}), "7 reservation 3 2 5 0");
  EXPECT_EQ(of_request(decision::Preemption{416}), "7 preemption 3 2 416 0");
  EXPECT_EQ(of_request(decision::FirstToken{}), "7 first_token 3 2 0 0");
  EXPECT_EQ(of_request(decision::Finish{FinishReason::abort, 9}), "7 finish 3 2 2 9");
  EXPECT_EQ(of_request(decision::Abort{}), "7 abort 3 2 0 0");

  const auto of_adapter = [](const decision::Any& what) {
    return EventLog::line_of({7, kNoRequestId, 2, what});
  };
  EXPECT_EQ(of_adapter(decision::Load{1 << 20}), "7 load - 2 1048576 0");
  EXPECT_EQ(of_adapter(decision::LoadDone{}), "7 load_done - 2 0 0");
  EXPECT_EQ(of_adapter(decision::LoadFailure{true}), "7 load_failure - 2 1 0");
  EXPECT_EQ(of_adapter(decision::Copy{4, 1 << 20}), "7 copy - 2 4 1048576");
  EXPECT_EQ(of_adapter(decision::CopyDone{4}), "7 copy_done - 2 4 0");
  EXPECT_EQ(of_adapter(decision::Eviction{kNoSlot, true}), "7 eviction - 2 -1 1");
  EXPECT_EQ(of_adapter(decision::Drain{8}), "7 drain - 2 8 0");
  EXPECT_EQ(of_adapter(decision::DrainEnd{}), "7 drain_end - 2 0 0");
  EXPECT_EQ(of_adapter(decision::Unload{12}), "7 unload - 2 12 0");
}

// XXH3 (64 bits, seed 0) over the six words of each entry, little-endian.
TEST(EventLog, TheHashIsOverTheRecords) {
  EventLog log(/*keep=*/true);
  log.on_decision({7, 3, 2, decision::Arrival{410, 167}});
  log.on_decision({8, kNoRequestId, 2, decision::Eviction{kNoSlot, true}});
  EXPECT_THAT(EventLog::record_of(log.decisions()[1]),
              testing::ElementsAre(8, 7, kNoRequestId, 2, uint64_t(-1), 1));
  EXPECT_EQ(log.hash(), "72616c12d6f8c0c7");
  std::ostringstream text;
  EventLog::write_text(text, log.decisions());
  EXPECT_EQ(text.str(), "7 arrival 3 2 410 167\n8 eviction - 2 -1 1\n");
}

}  // namespace
}  // namespace loratory::sim
