#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <string>

#include "fuzz/support/draw.hpp"

namespace loratory::sim {

/// How many cases a property runs unless RC_PARAMS says otherwise; set before RapidCheck reads it.
/// The rarest known mistake of the scheduler showed once in 400 cases.
inline const int kDefaultNumCases = setenv("RC_PARAMS", "max_success=1000", /*overwrite=*/0);

/// A random run: the configuration follows from the seed, the operations too; fewer operations are
/// a prefix of more, so that shrinking `num_ops` cuts the run behind the failure.
struct SeededCase {
  uint64_t seed = 0;
  int num_ops = 0;
};

inline std::ostream& operator<<(std::ostream& out, const SeededCase& c) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  return out << fmt::format("REPRO: LORATORY_CASE={}:{} <this binary> --gtest_filter={}.{}", c.seed,
                            c.num_ops, test->test_suite_name(), test->name());
}

/// The case that the environment names, or a random one of at most `max_ops` operations.
inline SeededCase any_seeded_case(int max_ops) {
  SeededCase c;
  if (const char* text = std::getenv("LORATORY_CASE"); text != nullptr) {
    unsigned long long seed = 0;
    RC_ASSERT(std::sscanf(text, "%llu:%d", &seed, &c.num_ops) == 2);
    c.seed = seed;
  } else {
    c = *rc::gen::build<SeededCase>(
        rc::gen::set(&SeededCase::seed, seeds()),
        rc::gen::set(&SeededCase::num_ops, rc::gen::inRange(1, max_ops)));
  }
  RC_LOG() << c << '\n';
  return c;
}

}  // namespace loratory::sim
