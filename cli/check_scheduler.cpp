#include "cli/check_scheduler.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <limits>

#include "check/schedulers/child_scheduler.hpp"
#include "check/schedulers/own_scheduler.hpp"
#include "cli/flags.hpp"

namespace loratory::cli {

void add_scheduler_flags(CLI::App& command, SchedulerFlags& flags) {
  constexpr const char* kGroup = "Schedulers";
  command
      .add_option("--scheduler", flags.scheduler,
                  "own, own-blocking, own-packed, a path that ends with .so, or a command that "
                  "reads and writes lines")
      ->group(kGroup);
  add_number(command, "--timeout-ms", flags.timeout_ms, {1, 3'600'000},
             "For one reply of a command")
      ->group(kGroup);
  command
      .add_flag("--serve-scheduler", flags.serves,
                "Be a command for --scheduler: our own scheduler answers the lines of stdin")
      ->group(kGroup);
}

check::Report check_scheduler(const SchedulerFlags& flags, const check::SchedulerOptions& options) {
  return check::run_scheduler_checks(check::scheduler_named(flags.scheduler, flags.timeout_ms),
                                     options);
}

void write_transcript(std::ostream& out, const SchedulerFlags& flags, const check::Report& report) {
  if (report.findings.empty()) return;
  const auto scheduler = check::scheduler_named(flags.scheduler, flags.timeout_ms)();
  const check::SessionResult result =
      check::run_session(*scheduler, check::parse_session(report.findings.front().smallest),
                         {.transcript_lines = std::numeric_limits<size_t>::max()});
  for (const std::string& line : result.transcript) out << line << '\n';
}

void serve_own_scheduler() { check::serve_scheduler(*check::own_scheduler(), stdin, stdout); }

}  // namespace loratory::cli
