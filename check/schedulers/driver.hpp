#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "check/schedulers/scheduler_under_test.hpp"
#include "check/schedulers/session.hpp"

namespace loratory::check {

/// What a judge objected to.
struct SchedulerFinding {
  std::string judge;           ///< its name
  std::string what;            ///< one sentence
  int64_t exchange = 0;        ///< the how manyth of the session
  std::string message, reply;  ///< that exchange, as JSON; the reply is empty if there was none
};

/// How often what is interesting happened.
struct SessionCounts {
  int64_t exchanges = 0, steps = 0, rows = 0, tokens = 0;
  int64_t steps_ahead = 0, prefix_hits = 0, chunks = 0, preemptions = 0, evictions = 0, copies = 0;
  int64_t failed_loads = 0, aborts_in_flight = 0, unloads_in_use = 0, pins = 0, names_reused = 0;
  int64_t refusals = 0, full_pools = 0;

  void add(const SessionCounts& other);
};

struct SessionResult {
  std::optional<SchedulerFinding> finding;
  SessionCounts counts;
  Claims claims;
  std::string name;                     ///< of the scheduler
  std::vector<std::string> transcript;  ///< messages and replies in turn, the last ones; if kept
};

struct SessionOptions {
  std::vector<std::string> judges{};  ///< only these, by name, and always sense; empty = all
  bool repeat = true;  ///< claims `deterministic`: say everything again, compare the replies
  size_t transcript_lines = 0;
};

/// Plays the engine for one session. Operations first, then everything is led to its end: every
/// request finishes, every adapter is unloaded, and a last request asks for all KV blocks.
/// Repeats  same session, same answers: same session.
SessionResult run_session(SchedulerUnderTest& scheduler, const Session& session,
                          const SessionOptions& options = {});

}  // namespace loratory::check
