#include "check/schedulers/run_scheduler_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>

#include "check/report/ledger.hpp"
#include "check/schedulers/child_scheduler.hpp"
#include "check/schedulers/json_lines.hpp"
#include "check/schedulers/judge.hpp"
#include "check/schedulers/own_scheduler.hpp"
#include "check/schedulers/plugin_scheduler.hpp"
#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/wording.hpp"

namespace loratory::check {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kShrinkSeconds = 20;

// Name, and what must be claimed for it; nullptr = nothing.
std::vector<SessionJudge> judge_table() {
  std::vector<SessionJudge> table;
  for (const auto& judge : all_judges()) table.push_back({judge->name(), judge->needs()});
  for (const SessionJudge& judge : session_judges()) table.push_back(judge);
  return table;
}

class Run {
 public:
  Run(const SchedulerFactory& make, const SchedulerOptions& options)
      : make_(make), options_(options), started_(Clock::now()) {}

  Report report() {
    report_.seed = options_.seed;
    for (const Session& session : sessions()) {
      if (is_over()) break;
      play(session);
    }
    return so_far();
  }

 private:
  std::vector<Session> sessions() const {
    std::vector<Session> all;
    for (const std::string& label : options_.labels) all.push_back(parse_session(label));
    for (int64_t i = 0; options_.labels.empty() && i < options_.num_sessions; ++i) {
      all.push_back(draw_session(options_.seed + uint64_t(i)));
    }
    return all;
  }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - started_).count(); }
  bool is_over() const {
    if (options_.budget_s > 0 && report_.num_cases > 0 && seconds() > options_.budget_s) {
      return true;
    }
    if (options_.is_interrupted && options_.is_interrupted()) return true;
    return is_stopped_;
  }

  void play(const Session& session) {
    const SessionResult result = result_of(session);
    ++report_.num_cases;
    if (options_.on_case) options_.on_case(label_of(session));
    if (!result.name.empty()) {  // hello was answered
      report_.subject = result.name;
      claims_ = result.claims;
    }
    if (!result.finding) {
      ++num_whole_;
      num_exchanges_ += result.counts.exchanges;
      return;
    }
    ++num_objections_[result.finding->judge];
    scheduler_ = nullptr;
    tell(session, *result.finding);
  }

  SessionResult result_of(const Session& session) {
    const std::string label = label_of(session);
    if (options_.on_run) options_.on_run(label, if_it_ends_in(label));
    try {
      if (scheduler_ == nullptr) scheduler_ = make_();
    } catch (const DoorError& error) {
      SessionResult result;
      result.finding = {
          .judge = "door", .what = error.what(), .exchange = 0, .message = "create", .reply = ""};
      return result;
    }
    return run_session(*scheduler_, session, {.judges = options_.judges});
  }

  void tell(const Session& session, const SchedulerFinding& finding) {
    const std::vector<size_t> lines =
        options_.knows ? options_.knows(finding.judge, label_of(session)) : std::vector<size_t>();
    if (!told_.add(finding.judge, lines)) return;
    if (lines.empty() && options_.stops_at_first) is_stopped_ = true;
    add_finding(session, finding);
  }

  // The finding of the same judge in another session. A scheduler that a session left somewhere in
  // the middle begins anew with the next hello; one whose door broke is made anew.
  std::optional<SchedulerFinding> finding_in(const Session& session, const std::string& judge) {
    SessionResult result = result_of(session);
    if (result.finding && result.finding->judge == "door") scheduler_ = nullptr;
    return result.finding && result.finding->judge == judge ? result.finding : std::nullopt;
  }

  void add_finding(const Session& session, const SchedulerFinding& first) {
    Session smallest = session;
    if (options_.shrinks) {
      const auto deadline = Clock::now() + std::chrono::duration<double>(kShrinkSeconds);
      smallest = shrink_session(session, [&](const Session& smaller) {
        return Clock::now() < deadline && finding_in(smaller, first.judge).has_value();
      });
    }
    scheduler_ = nullptr;  // what a REPRO line begins with
    std::optional<SchedulerFinding> seen = finding_in(smallest, first.judge);
    if (!seen) {
      smallest = session;
      seen = first;
    }
    scheduler_ = nullptr;
    const std::string label = label_of(smallest);
    report_.findings.push_back(
        {.check = first.judge,
         .label = label_of(session),
         .smallest = label,
         .what = seen->what,
         .pattern = fmt::format("exchange {}: {} -> {}", seen->exchange, one_line(seen->message),
                                seen->reply.empty() ? "no valid reply" : one_line(seen->reply)),
         .repro = repro_of(label),
         .reference = ""});
  }

  std::string repro_of(const std::string& label) const {
    return fmt::format("{} --case {}", options_.command, label);
  }

  Report so_far() const {
    Report out = report_;
    out.seconds = seconds();
    out.checks = checks();
    return out;
  }

  // That it does is a finding of the door.
  Report if_it_ends_in(const std::string& label) const {
    Report out = so_far();
    const auto door = std::ranges::find(out.checks, "door", &CheckResult::name);
    LORATORY_ASSERT(door != out.checks.end(), "it is a judge");
    door->state = CheckState::failed;
    door->note.clear();
    out.findings.push_back({.check = door->name,
                            .label = label,
                            .smallest = label,
                            .what = "the scheduler ends the process: exit(), abort() or a crash",
                            .pattern = {},
                            .repro = repro_of(label),
                            .reference = {}});
    return out;
  }

  std::vector<CheckResult> checks() const {
    std::vector<CheckResult> out;
    for (const SessionJudge& judge : judge_table()) {
      CheckResult check{.name = judge.name, .note = ""};
      const bool is_asked = options_.judges.empty() ||
                            std::ranges::count(options_.judges, check.name) > 0 ||
                            check.name == "sense";
      if (told_.has_failed(check.name)) {
        check.state = CheckState::failed;
      } else if (told_.has_known(check.name)) {
        check.state = CheckState::observed;
        check.note = "a known finding";
      } else if (judge.needs != nullptr && !is_claimed(judge.needs)) {
        check.state = CheckState::skipped;
        check.note = fmt::format("{} is not claimed", judge.needs);
      } else if (!is_asked) {
        check.state = CheckState::skipped;
        check.note = "not asked for";
      } else if (num_whole_ == 0) {
        check.state = CheckState::skipped;
        check.note = "no session came to its end";
      }
      if (check.state != CheckState::skipped) {
        check.num_cases = num_whole_ + num_objections_of(check.name);
        check.num_comparisons = num_exchanges_;
      }
      out.push_back(std::move(check));
    }
    return out;
  }

  int64_t num_objections_of(const std::string& judge) const {
    const auto found = num_objections_.find(judge);
    return found == num_objections_.end() ? 0 : found->second;
  }

  // A judge needs what it is named in the claims.
  bool is_claimed(const std::string& claim) const {
    const Claims& c = claims_;
    const std::map<std::string, bool> claimed = {{"generations", c.generations},
                                                 {"loads", c.loads},
                                                 {"pins", c.pins},
                                                 {"unloads", c.unloads},
                                                 {"deterministic", c.deterministic},
                                                 {"max_overtakes", c.max_overtakes >= 0}};
    return claimed.at(claim);
  }

  const SchedulerFactory& make_;
  const SchedulerOptions& options_;
  Clock::time_point started_;
  std::unique_ptr<SchedulerUnderTest> scheduler_;
  Report report_;
  Claims claims_;
  // A session that somebody ends by an objection counts for him alone: the others saw a part of it.
  int64_t num_whole_ = 0, num_exchanges_ = 0;  // sessions without an objection
  std::map<std::string, int64_t> num_objections_;
  FirstFindings told_;
  bool is_stopped_ = false;
};

}  // namespace

std::vector<std::string> scheduler_judge_names() {
  std::vector<std::string> names;
  for (const SessionJudge& judge : judge_table()) names.emplace_back(judge.name);
  return names;
}

Report run_scheduler_checks(const SchedulerFactory& make, const SchedulerOptions& options) {
  const std::vector<std::string> known = scheduler_judge_names();
  for (const std::string& name : options.judges) {
    if (std::ranges::find(known, name) != known.end()) continue;
    throw InputError(
        "--checks", fmt::format("no judge is called {}", shown(name)),
        did_you_mean(name, known, fmt::format("there are {}", fmt::join(known, ", "))));
  }
  return Run(make, options).report();
}

bool is_scheduler_library(const std::string& text) {
  // A command may end so as well: "python3 wrap.py libmine.so".
  const bool is_one_word = text.find(' ') == std::string::npos;
  return text.ends_with(".so") && (is_one_word || std::filesystem::exists(text));
}

SchedulerFactory scheduler_named(const std::string& text, int64_t timeout_ms) {
  if (text == "own") return [] { return own_scheduler(); };
  if (text == "own-blocking") return [] { return own_scheduler({.blocking = true}); };
  if (text == "own-packed") return [] { return own_scheduler({.packed = true}); };
  if (is_scheduler_library(text)) return load_scheduler_library(text);
  if (text.find_first_not_of(' ') == std::string::npos) {
    throw InputError("--scheduler", "is empty", "own, a path that ends with .so, or a command");
  }
  return [text, timeout_ms] { return child_scheduler(text, timeout_ms); };
}

}  // namespace loratory::check
