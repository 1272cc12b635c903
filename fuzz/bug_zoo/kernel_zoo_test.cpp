#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "check/kernels/run_kernel_checks.hpp"
#include "fuzz/bug_zoo/naive_kernel.hpp"
#include "fuzz/bug_zoo/zoo_table.hpp"

namespace loratory::zoo {
namespace {

check::Report judge(const ZooKernel& zoo, int64_t num_cases, int64_t max_products) {
  const LoratoryPlugin plugin = zoo.plugin();
  const check::Kernel kernel(plugin);
  check::Options options;
  options.num_cases = num_cases;
  options.max_products = max_products;
  options.shrinks = false;
  options.stops_at_first = true;
  return check::run_kernel_checks(kernel, options);
}

TEST(BugZoo, EveryWrongKernelIsCaughtWithin200Cases) {
  std::vector<ZooRow> rows;
  for (const ZooKernel& zoo : wrong_kernels()) {
    const check::Report report = judge(zoo, 200, 1 << 16);
    ZooRow row{.note = zoo.note};
    row.num_cases = report.num_cases;
    if (report.findings.empty()) {
      ADD_FAILURE() << zoo.note.name << ": nothing noticed that " << zoo.note.what;
    } else {
      row.caught_by = report.findings[0].check;
    }
    if (std::getenv("LORATORY_ZOO_VERBOSE") != nullptr) {
      fmt::print("{:32} {:4} {:4.1f} s {}\n", zoo.note.name, report.num_cases, report.seconds,
                 report.findings.empty()
                     ? "NOT NOTICED"
                     : fmt::format("{}: {} ({})", row.caught_by, report.findings[0].what,
                                   report.findings[0].label));
    }
    rows.push_back(row);
  }
  EXPECT_GE(rows.size(), 40U);
  expect_in_docs("kernels", rows);
}

TEST(BugZoo, NoRightKernelIsFlaggedInAMillionComparisons) {
  int64_t num_comparisons = 0;
  for (const ZooKernel& zoo : right_kernels()) {
    const check::Report report = judge(zoo, 8, 1 << 16);
    for (const check::Finding& finding : report.findings) {
      ADD_FAILURE() << zoo.note.name << ": " << finding.check << ": " << finding.what << " ("
                    << finding.label << ")";
    }
    int64_t of_this = 0;
    for (const check::CheckResult& result : report.checks) of_this += result.num_comparisons;
    num_comparisons += of_this;
    if (std::getenv("LORATORY_ZOO_VERBOSE") != nullptr) {
      fmt::print("{:32} {:4} {:4.1f} s {} comparisons\n", zoo.note.name, report.num_cases,
                 report.seconds, of_this);
    }
  }
  EXPECT_GE(num_comparisons, 1'000'000);
}

}  // namespace
}  // namespace loratory::zoo
