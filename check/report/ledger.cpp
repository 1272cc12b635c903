#include "check/report/ledger.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "reference/base/input_error.hpp"
#include "reference/base/text.hpp"
#include "reference/base/wording.hpp"

namespace loratory::check {
namespace {

// `*` stands for any text, also for none.
bool matches(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern.front() != '*') {
    return !text.empty() && pattern.front() == text.front() &&
           matches(pattern.substr(1), text.substr(1));
  }
  for (size_t i = 0; i <= text.size(); ++i) {
    if (matches(pattern.substr(1), text.substr(i))) return true;
  }
  return false;
}

}  // namespace

std::vector<LedgerLine> parse_ledger(std::string_view text, const std::string& file,
                                     const std::vector<std::string>& known) {
  std::vector<LedgerLine> ledger;
  size_t number = 0;
  for (const std::string_view line : split(text, '\n')) {
    ++number;
    LedgerLine entry{.check = "", .label = "", .reference = "", .number = number};
    std::istringstream words{std::string(line)};
    words >> entry.check >> entry.label >> std::ws;
    std::getline(words, entry.reference);
    if (entry.check.empty() || entry.check.starts_with('#')) continue;
    const std::string place = fmt::format("{}:{}", file, number);
    if (std::ranges::find(known, entry.check) == known.end()) {
      throw InputError(place, fmt::format("no check is called {}", shown(entry.check)),
                       did_you_mean(entry.check, known, "see the report for their names"));
    }
    if (entry.reference.empty()) {
      throw InputError(place, "has no reference",
                       "a check, a case or *, and where the finding is reported");
    }
    ledger.push_back(std::move(entry));
  }
  return ledger;
}

std::vector<size_t> lines_for(const std::vector<LedgerLine>& ledger, std::string_view check,
                              std::string_view label) {
  std::vector<size_t> numbers;
  for (const LedgerLine& line : ledger) {
    if (line.check == check && matches(line.label, label)) numbers.push_back(line.number);
  }
  return numbers;
}

void note_case(std::vector<LedgerLine>& ledger, std::string_view label) {
  for (LedgerLine& line : ledger) line.has_case = line.has_case || matches(line.label, label);
}

bool FirstFindings::add(const std::string& check, const std::vector<size_t>& lines) {
  if (lines.empty()) return failed_.insert(check).second;
  std::set<size_t>& told = known_[check];
  const size_t before = told.size();
  told.insert(lines.begin(), lines.end());
  return told.size() > before;
}

void apply_ledger(const std::vector<LedgerLine>& ledger, Report& report) {
  for (const LedgerLine& line : ledger) {
    bool is_seen = false;
    for (Finding& finding : report.findings) {
      const bool is_it = finding.check == line.check && (matches(line.label, finding.label) ||
                                                         matches(line.label, finding.smallest));
      if (is_it && finding.reference.empty()) finding.reference = line.reference;
      is_seen = is_seen || is_it;
    }
    const auto ran = [&](const CheckResult& check) {
      return check.name == line.check && check.state != CheckState::skipped && check.num_cases > 0;
    };
    if (!is_seen && line.has_case && std::ranges::any_of(report.checks, ran)) {
      report.stale.push_back(
          fmt::format("line {}: {} {} {}", line.number, line.check, line.label, line.reference));
    }
  }
}

}  // namespace loratory::check
