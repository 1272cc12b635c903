#include "scheduler_sim/measured/bounded_fit.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

namespace loratory::sim {
namespace {

FitParameter about(double prior, double sigma) {
  return {.start = prior, .low = -100, .high = 100, .prior = prior, .sigma = sigma};
}

// y = 2 + 3 x at x = 0 .. 9, judged by its residuals.
void line(std::span<const double> values, std::span<double> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const auto x = double(i);
    out[i] = values[0] + values[1] * x - (2 + 3 * x);
  }
}

TEST(BoundedFit, ALineThroughExactPoints) {
  const auto fitted = fit_bounded({about(0, 50), about(0, 50)}, 10, 0.1, line);
  // The prior pulls by noise^2 / sigma^2 = 4e-6 of what is missing, times (X'X)^-1 < 0.4.
  EXPECT_NEAR(fitted[0].value, 2, 1e-5);
  EXPECT_NEAR(fitted[1].value, 3, 1e-5);
  EXPECT_TRUE(fitted[0].is_identified && fitted[1].is_identified);
  // 0.1^2 (X'X)^-1 with sum x = 45, sum x^2 = 285: 285 / 825 and 10 / 825.
  EXPECT_NEAR(fitted[0].error, 0.1 * std::sqrt(285.0 / 825), 1e-4);
  EXPECT_NEAR(fitted[1].error, 0.1 * std::sqrt(10.0 / 825), 1e-4);
}

TEST(BoundedFit, WhatTheResidualsDoNotTellStaysAtThePrior) {
  // Only their sum matters: one is told, given the other.
  const Residuals sum = [](std::span<const double> values, std::span<double> out) {
    for (double& r : out) r = values[0] + values[1] - 10;
  };
  const auto fitted = fit_bounded({about(1, 0.1), about(1, 5)}, 4, 0.1, sum);
  EXPECT_FALSE(fitted[0].is_identified);
  EXPECT_EQ(fitted[0].value, 1);
  EXPECT_EQ(fitted[0].error, 0.1);
  EXPECT_TRUE(fitted[1].is_identified);
  EXPECT_NEAR(fitted[1].value, 9, 1e-2);

  const Residuals nothing = [](std::span<const double>, std::span<double> out) {
    for (double& r : out) r = 0.5;
  };
  EXPECT_FALSE(fit_bounded({about(1, 5)}, 4, 0.1, nothing)[0].is_identified);
  EXPECT_FALSE(fit_bounded({about(1, 5)}, 0, 0.1, nothing)[0].is_identified);
}

TEST(BoundedFit, BoundsHold) {
  FitParameter low = about(0, 50), fixed = about(7, 50);
  low.high = 1.5;
  fixed.low = fixed.high = 7;
  const auto fitted = fit_bounded({low, about(0, 50), fixed}, 10, 0.1, line);
  EXPECT_NEAR(fitted[0].value, 1.5, 1e-9);
  EXPECT_EQ(fitted[2].value, 7);
  EXPECT_FALSE(fitted[2].is_identified);
}

TEST(BoundedFit, AnOutlierWeighsLittle) {
  const Residuals with_outlier = [](std::span<const double> values, std::span<double> out) {
    for (double& r : out) r = values[0] - 5;
    out[0] -= 20;
  };
  const auto fitted = fit_bounded({about(0, 50)}, 10, 0.1, with_outlier);
  // Least squares would say 7. Soft L1: an outlier pulls by `noise`, nine residuals of r pull back
  // by r each: r = noise / 9 / sqrt(1 - 1/81).
  EXPECT_NEAR(fitted[0].value, 5 + 0.1 / 9 / std::sqrt(1 - 1.0 / 81), 1e-3);
}

TEST(BoundedFit, SaysWhereAResidualIsNotFinite) {
  const Residuals bad = [](std::span<const double>, std::span<double> out) {
    for (double& r : out) r = std::numeric_limits<double>::quiet_NaN();
  };
  EXPECT_THROW(fit_bounded({about(0, 1)}, 3, 0.1, bad), std::runtime_error);
}

}  // namespace
}  // namespace loratory::sim
