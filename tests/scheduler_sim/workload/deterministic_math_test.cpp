#include "scheduler_sim/workload/deterministic_math.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace loratory::sim {
namespace {

double relative_error(double got, double expected) {
  if (got == expected) return 0;
  return std::abs(got - expected) / std::abs(expected);
}

TEST(DeterministicMath, LogAgreesWithLibm) {
  double worst = 0;
  for (double x = 1e-300; x < 1e300; x *= 1.0137) {
    worst = std::max(worst, relative_error(det_log(x), std::log(x)));
  }
  for (int i = 1; i < 4000; ++i) {  // near 1, where log(x) itself is small
    worst = std::max(worst, relative_error(det_log(1 + i * 1e-7), std::log(1 + i * 1e-7)));
    worst = std::max(worst, relative_error(det_log(1 - i * 2e-4), std::log(1 - i * 2e-4)));
  }
  EXPECT_LT(worst, 1e-15);
  EXPECT_EQ(det_log(1), 0);
  EXPECT_LT(relative_error(det_log(5e-324), std::log(5e-324)), 1e-15);
}

TEST(DeterministicMath, ExpAgreesWithLibm) {
  double worst = 0;
  for (double x = -708; x < 709; x += 0.0173) {
    worst = std::max(worst, relative_error(det_exp(x), std::exp(x)));
  }
  EXPECT_LT(worst, 1e-15);
  EXPECT_EQ(det_exp(0), 1);
  EXPECT_EQ(det_exp(-746), 0);
  EXPECT_EQ(det_exp(710), std::numeric_limits<double>::infinity());
  EXPECT_NEAR(det_exp(-740), std::exp(-740), 5e-324);  // subnormal: one unit
}

TEST(DeterministicMath, PowAgreesWithLibm) {
  for (double base = 1e-6; base < 1e6; base *= 1.37) {
    for (double exponent = -8; exponent <= 8; exponent += 0.31) {
      const double bound = 1e-15 + 4e-16 * std::abs(exponent * std::log(base));
      EXPECT_LE(relative_error(det_pow(base, exponent), std::pow(base, exponent)), bound)
          << base << "^" << exponent;
    }
  }
  EXPECT_EQ(det_pow(0, 0), 1);
  EXPECT_EQ(det_pow(0, 2), 0);
}

TEST(DeterministicMath, NormalQuantileInvertsTheNormalLaw) {
  for (double p = 1e-15; p < 0.5; p *= 1.21) {
    const double x = det_normal_quantile(p);
    // d log(Phi) = |x| dx or so: an error of 1e-14 |x| in x moves p by 1e-14 x^2 + 1e-14.
    EXPECT_LT(relative_error(std::erfc(-x / std::sqrt(2.0)) / 2, p), 2e-14 * (1 + x * x)) << p;
  }
  EXPECT_EQ(det_normal_quantile(0.5), 0);
  EXPECT_NEAR(det_normal_quantile(0.975), 1.959963984540054, 1e-14);
  EXPECT_EQ(det_normal_quantile(0.25), -det_normal_quantile(0.75));
}

TEST(DeterministicMath, GammaFunctionAgreesWithLibm) {
  for (double x = 0.01; x <= 100; x *= 1.03) {
    EXPECT_LT(relative_error(det_gamma_function(x), std::tgamma(x)), 1e-13) << x;
  }
}

// The bits themselves: a compiler that fuses or reorders would change them and every trace.
TEST(DeterministicMath, BitsAreTheSameOnEveryMachine) {
  uint64_t mixed = 0;
  for (int i = 1; i <= 1000; ++i) {
    const double u = i / 1001.0;
    for (const double value : {det_log(u), det_exp(20 * u - 10), det_normal_quantile(u),
                               det_gamma_function(20 * u), det_pow(u, 3.3)}) {
      mixed = (mixed ^ std::bit_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15u;
    }
  }
  EXPECT_EQ(mixed, 1974398054858520875u);
}

}  // namespace
}  // namespace loratory::sim
