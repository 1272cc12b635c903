#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "check/kernels/kernel.hpp"
#include "check/report/report.hpp"

namespace loratory::check {

/// Which cases, and how many. All fields have a default that fits a first look.
struct Options {
  std::vector<std::string> operations;  ///< "linear", "shrink", ...; empty: all that are claimed
  std::vector<std::string> checks;      ///< by name; empty: all
  std::vector<std::string> labels;      ///< these cases alone (check/cases/case.hpp)
  uint64_t seed = 1;                    ///< of the cases that are drawn; same seed, same cases
  int64_t num_cases = 200;
  double budget_s = 0;  ///< no further case after this time, none to shrink after twice; 0: no end
  int64_t max_products = 1 << 22;  ///< multiplications of the largest case: its cost
  /// Of a tensor of more than 2^31 elements and what lies before it; 0: none is tried. On the host
  /// it is committed only where it is touched.
  int64_t max_bytes = int64_t(20) << 30;
  bool shrinks = true;          ///< look for the smallest case that still shows a finding
  bool stops_at_first = false;  ///< the first finding ends the run; else the first of each check
  std::string command = "loratory check --impl ...";  ///< what a REPRO line begins with
  /// Which lines of a ledger know a finding of this check in this case. One that some do is told
  /// for each line once, and hides no other one.
  std::function<std::vector<size_t>(std::string_view check, std::string_view label)> knows;
  /// Told of every case that is judged.
  std::function<void(std::string_view label)> on_case;
  /// Told of every case before it runs: of those, and of smaller ones while a finding shrinks. The
  /// report is right if the kernel ends the process in this case: that is its last finding.
  std::function<void(std::string_view label, const Report& if_it_ends)> on_run;
  /// Asked between cases; true ends the run (Ctrl-C).
  std::function<bool()> is_interrupted;
};

/// Draws cases that the kernel claims to take, runs it on them and judges what it wrote.
/// Errors   InputError: an option that no operation, check or label has, a label that the claims do
///          not cover. A kernel that fails is a finding, not an error.
/// Repeats  the same report for the same options, if the kernel repeats; `seconds` apart.
/// Threads  calls of one kernel must not overlap.
Report run_kernel_checks(const Kernel& kernel, const Options& options = {});

/// The names of the checks, in the order of the report.
std::vector<std::string> kernel_check_names();

}  // namespace loratory::check
