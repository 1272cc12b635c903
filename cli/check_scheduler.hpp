#pragma once

#include <cstdint>
#include <ostream>
#include <string>

#include "check/report/report.hpp"
#include "check/schedulers/run_scheduler_checks.hpp"

namespace CLI {
class App;
}

namespace loratory::cli {

/// What `loratory check --scheduler` has of its own.
struct SchedulerFlags {
  std::string scheduler;
  uint32_t timeout_ms = 10'000;
  bool serves = false;
};
void add_scheduler_flags(CLI::App& command, SchedulerFlags& flags);

check::Report check_scheduler(const SchedulerFlags& flags, const check::SchedulerOptions& options);
/// Every message and reply of the first finding's smallest session, one line each.
void write_transcript(std::ostream& out, const SchedulerFlags& flags, const check::Report& report);
/// Our own scheduler answers the lines of stdin.
void serve_own_scheduler();

}  // namespace loratory::cli
