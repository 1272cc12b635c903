// The statistical lane from both sides: right implementations pass, faults do not.
#include "check/statistics/statistical_judge.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <string>

#include "fuzz/support/judged_emulation.hpp"

namespace loratory::check {
namespace {

using namespace reference;

// Any order, tiling, split, dtype, mode and distribution: bench/results has the same of a million.
TEST(StatisticalJudge, RightImplementationsPass) {
  std::map<std::string, double> closest;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const EmulatedCase c = emulated_case(seed, 1 << 15);
    const StatisticalVerdict verdict = judged(c, c.draw(), Fault::none);
    EXPECT_TRUE(verdict.ok) << describe(c) << "\n" << verdict.in_words();
    for (const StatisticalTest& t : verdict.tests) {
      closest[t.name] = std::max(closest[t.name], t.statistic / t.threshold);
    }
  }
  for (const auto& [test, share] : closest)
    std::printf("%-17s %.3f of its threshold\n", test.c_str(), share);
}

}  // namespace
}  // namespace loratory::check
