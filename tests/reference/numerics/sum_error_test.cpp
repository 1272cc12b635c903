// What sums of products report about themselves, by hand, and errors of real sums against it.
#include "reference/numerics/sum_error.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace loratory::reference {
namespace {

TEST(SumError, FactsOfFourTermsByHand) {
  const std::vector<double> left{1, 2, 3, 0};
  const std::vector<float> right{1, -1, 1, 1, -2, 1, 5, 0};  // [4][2]
  const SumFacts facts = sums_of_products(left, right, 2);
  // Column 0: 1, 2, -6, 0; partial sums 1, 3, -3, -3. Column 1: -1, 2, 3, 0; -1, 1, 4, 4.
  EXPECT_EQ(facts.sum, (std::vector<double>{-3, 4}));
  EXPECT_EQ(facts.squares, (std::vector<double>{41, 14}));
  EXPECT_EQ(facts.signs, (std::vector<double>{1, 1}));
  // In order 28/4 and 34/4; in random order 9/3 + 41/6 and 16/3 + 14/6; of every second term,
  // (1 - 6)² + 2² and (2)² + 2² over 6.
  EXPECT_DOUBLE_EQ(facts.partial[0], 2 * (29.0 / 6 + 41.0 / 6));
  EXPECT_DOUBLE_EQ(facts.partial[1], 2 * 34.0 / 4);
  // (-2/4 + 3/2)² against 41/12; (8/4 - 2)² against 14/12.
  EXPECT_DOUBLE_EQ(facts.drift[0], 2 * 41.0 / 12);
  EXPECT_DOUBLE_EQ(facts.drift[1], 2 * 14.0 / 12);
}

// Alternating terms: nothing in order, everything in two accumulators.
TEST(SumError, StridedPartialSumsCount) {
  const std::vector<double> left(1024, 1);
  std::vector<float> right(1024, 1);
  for (size_t i = 1; i < right.size(); i += 2) right[i] = -1;
  const SumFacts facts = sums_of_products(left, right, 1);
  EXPECT_EQ(facts.sum[0], 0);
  EXPECT_DOUBLE_EQ(facts.partial[0], 2 * (1024.0 / 6 + 2 * 512.0 * 512.0 / 6));
}

TEST(SumError, NearestAndCut) {
  const SumFacts facts{
      .num_terms = 16, .sum = {3}, .squares = {5}, .partial = {4}, .drift = {2}, .signs = {6}};
  const RandomError nearest = sum_error(facts, 0, 16, accumulators_of({.unit = 0x1p-24}));
  EXPECT_EQ(nearest.mean, 0);
  EXPECT_DOUBLE_EQ(nearest.variance, 0x1p-48 * (5 + 16 * 4));
  const Accumulators cut = accumulators_of({.unit = 0x1p-22});
  EXPECT_TRUE(cut.cut);
  EXPECT_EQ(cut.unit, 0x1p-23);
  const RandomError toward_zero = sum_error(facts, 0, 16, cut);
  EXPECT_DOUBLE_EQ(toward_zero.mean, -0x1p-24 * (2 * 6 + 2 * 1.5));
  EXPECT_DOUBLE_EQ(toward_zero.variance, 0x1p-48 * (4 * (2 * 16 + 2) + 4 * 2));
}

// Sequential sums in fp32: their rms is below the model's deviation and not far below.
TEST(SumError, RmsOfSequentialSums) {
  std::mt19937_64 engine(1);
  std::normal_distribution<double> normal;
  const int64_t width = 200;
  for (const size_t n : {16, 256, 4096}) {
    std::vector<double> left(n);
    std::vector<float> right(n * size_t(width)), sum(size_t(width), 0);
    for (double& v : left) v = float(normal(engine));
    for (float& v : right) v = float(normal(engine));
    for (size_t i = 0; i < right.size(); ++i) {
      sum[i % sum.size()] += float(left[i / sum.size()]) * right[i];
    }
    const SumFacts facts = sums_of_products(left, right, width);
    double squares = 0;
    for (int64_t w = 0; w < width; ++w) {
      const double error = sum[size_t(w)] - facts.sum[size_t(w)];
      squares += error * error / sum_error(facts, w, facts.num_terms, {}).variance;
    }
    const double rms = std::sqrt(squares / double(width));
    EXPECT_LT(rms, 0.6) << n;
    EXPECT_GT(rms, 0.15) << n;
  }
}

}  // namespace
}  // namespace loratory::reference
