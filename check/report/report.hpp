#pragma once

#include <cstdint>
#include <string>
#include <vector>

// What was judged and what came out: of kernels and of schedulers. docs/check.md explains the text.

namespace loratory::check {

/// observed: true or false, and no promise depends on it.
enum class CheckState : uint8_t { passed, failed, observed, skipped };
std::string_view name(CheckState state);

/// One check by name, over all cases.
struct CheckResult {
  std::string name;
  CheckState state = CheckState::passed;
  int64_t num_cases = 0;        ///< in which it looked at something
  int64_t num_comparisons = 0;  ///< numbers, or rows of bits
  double worst = 0;             ///< error / bound, where there is a bound
  std::string note;             ///< why it was skipped, what was observed
};

/// Something is wrong.
struct Finding {
  std::string check;
  std::string label;      ///< the case that showed it
  std::string smallest;   ///< the smallest case found that shows it still; label if not shrunk
  std::string what;       ///< one line: where, what came, what should have come
  std::string pattern;    ///< which elements differ, in words; empty where there is no pattern
  std::string repro;      ///< one line for a shell
  std::string reference;  ///< of the ledger, if it is known there; then it is no failure
};

struct Report {
  std::string subject;  ///< whose code
  uint64_t seed = 0;
  int64_t num_cases = 0;
  double seconds = 0;
  std::vector<CheckResult> checks;
  std::vector<Finding> findings;
  std::vector<std::string> stale;  ///< lines of the ledger whose finding did not show

  /// No finding that the ledger does not know, and no stale line.
  bool ok() const;
  /// Of a check by this name, or null.
  const CheckResult* find(std::string_view check) const;
};

/// For people: a line for each check, then the findings.
std::string as_text(const Report& report);
/// One JSON object: what ran, its checks, the findings, and the stale lines of the ledger.
std::string as_json(const Report& report);
/// One JUnit test suite, a test case for each check.
std::string as_junit(const Report& report);

}  // namespace loratory::check
