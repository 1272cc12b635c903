#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

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

// Zeros lie beyond the rank for who says that it reads them: no NaN of a check, no factor of NaN.
TEST(BugZoo, ZerosBeyondTheRankAreZerosInEveryCheck) {
  const std::map<std::string_view, std::vector<std::string>> labels{
      {"whole_rank",
       {"shrink.K1.N1.r4.R5.s0.f16.seed147450694", "linear.K9.N4.r2,5.R8.n5.zipf.bf16.seed3"}},
      {"fp8_whole_rank",
       {"shrink.K9.N1.r2.R3.s0.f8_e4m3fn.xf32.wtensor.seed147450694",
        "expand.K1.N4.r4,2.R9.n3.zipf.f8_e4m3fn.xf32.wchannel.seed2420797071",
        "expand.K1.N2.r2.R9.s0.f8_e5m2.xf8_e4m3fn.wblock.ablock.seed3770681358"}}};
  for (const ZooKernel& zoo : right_kernels()) {
    if (!labels.contains(zoo.note.name)) continue;
    const LoratoryPlugin plugin = zoo.plugin();
    const check::Kernel kernel(plugin);
    check::Options options;
    options.labels = labels.at(zoo.note.name);
    options.shrinks = false;
    const check::Report report = check::run_kernel_checks(kernel, options);
    EXPECT_EQ(report.num_cases, int64_t(options.labels.size()));
    EXPECT_TRUE(report.ok()) << as_text(report);
  }
}

}  // namespace
}  // namespace loratory::zoo
