#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "check/report/report.hpp"
#include "check/schedulers/driver.hpp"
#include "check/schedulers/scheduler_under_test.hpp"

namespace loratory::check {

struct SchedulerOptions {
  std::vector<std::string> labels{};  ///< these sessions alone (session.hpp)
  std::vector<std::string> judges{};  ///< by name, and always sense; empty: all
  uint64_t seed = 1;                  ///< session i has seed + i
  int64_t num_sessions = 200;
  double budget_s = 0;  ///< no further session after this time; 0: none
  bool shrinks = true;  ///< look for the smallest session that still shows a finding
  bool stops_at_first = false;
  std::string command = "loratory check --scheduler ...";  ///< what a REPRO line begins with
  /// Which lines of a ledger know a finding of this judge in this session. One that some do is told
  /// for each line once, and hides no other one.
  std::function<std::vector<size_t>(std::string_view judge, std::string_view label)> knows{};
  /// Told of every session that is played.
  std::function<void(std::string_view label)> on_case{};
  /// Told before every session, those of shrinking too: its label, and the report as it is if the
  /// scheduler ends the process in it, as one of a library can.
  std::function<void(std::string_view label, const Report& if_it_ends)> on_run{};
  /// Asked between sessions; true ends the run (Ctrl-C).
  std::function<bool()> is_interrupted{};
};

/// Plays sessions with the scheduler, and says what each judge saw: a check of the report is a
/// judge, a case is a session that came to its end or that this judge ended, a comparison an
/// exchange of the former. After a finding the scheduler is made anew. A session shows the finding
/// of one judge, the first; the report has the first of each.
/// Errors   InputError: a label, or a name that no judge has; what `make` throws.
/// Repeats  the same report for the same options, if the scheduler repeats and shrinking takes less
///          than 20 s; `seconds` apart.
Report run_scheduler_checks(const SchedulerFactory& make, const SchedulerOptions& options = {});

/// The names of the judges, in the order of the report.
std::vector<std::string> scheduler_judge_names();

/// The smallest session found on which `is_shown` holds, beginning with `session`, on which it
/// does. Cuts off and leaves out operations, then simplifies the engine, and again. At most
/// `most_tries` questions.
Session shrink_session(const Session& session, const std::function<bool(const Session&)>& is_shown,
                       int64_t most_tries = 600);

/// Whether `text` as below is a library.
bool is_scheduler_library(const std::string& text);

/// `text` as --scheduler has it: own, own-blocking, own-packed; a path that ends with .so; else a
/// command. Errors  InputError.
SchedulerFactory scheduler_named(const std::string& text, int64_t timeout_ms = 10'000);

}  // namespace loratory::check
