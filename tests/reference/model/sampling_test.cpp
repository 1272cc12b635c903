#include "reference/model/sampling.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "reference/base/input_error.hpp"

namespace loratory::reference {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Vector<float> logits(std::initializer_list<float> values) {
  Vector<float> out(Eigen::Index(values.size()));
  std::copy(values.begin(), values.end(), out.data());
  return out;
}

TEST(Sampling, GreedyTakesTheLowestIdOfTheLargest) {
  EXPECT_EQ(sample(logits({1, 3, 3, 2}), {}, 0), 1);
  EXPECT_EQ(sample(logits({-kInf, -kInf}), {}, 0), 0);
  EXPECT_EQ(sample(logits({1, kInf, 2}), {}, 0), 1);
}

// [1.21]: NaN is never chosen while there is a number, and stops nothing.
TEST(Sampling, NanIsTheLeastLogit) {
  EXPECT_EQ(sample(logits({kNan, -5, kNan}), {}, 0), 1);
  EXPECT_EQ(sample(logits({kNan, -5, kNan}), {.temperature = 1}, 0), 1);
  EXPECT_EQ(sample(logits({kNan, kNan}), {}, 0), 0);
  EXPECT_NO_THROW(sample(logits({kNan, kNan}), {.temperature = 1}, 0));
}

// Random123, kat_vectors: philox4x32 10 of zeros begins 6627e8d5 e169c58d. Of 1000 equal logits
// that is number floor(0x6627e8d5 / 2^32 · 1000) = 399.
TEST(Sampling, DrawsFromPhilox) {
  const Vector<float> equal = Vector<float>::Zero(1000);
  EXPECT_EQ(sample(equal, {.temperature = 1}, 0), 399);
  std::set<int32_t> tokens;
  for (int64_t position = 0; position < 20; ++position) {
    tokens.insert(sample(equal, {.temperature = 1}, position));
  }
  for (uint64_t seed = 1; seed < 20; ++seed) {
    tokens.insert(sample(equal, {.temperature = 1, .seed = seed << 32}, 0));
  }
  for (int64_t position = 1; position < 20; ++position) {
    tokens.insert(sample(equal, {.temperature = 1}, position << 32));
  }
  EXPECT_GT(tokens.size(), 45U);  // both words of seed and position count
}

// How often each of three tokens comes in 4000 draws.
std::array<double, 3> shares(const Vector<float>& of, SamplingParams params) {
  std::array<double, 3> out{};
  for (int64_t position = 0; position < 4000; ++position) {
    out[size_t(sample(of, params, position))]++;
  }
  for (double& share : out) share /= 4000;
  return out;
}

// Shares 1/2, 1/3, 1/6. The draws are fixed; 0.04 is five standard deviations of a share.
TEST(Sampling, FollowsTheProbabilities) {
  const Vector<float> of = logits({std::log(2.0F), std::log(3.0F), 0});
  const auto plain = shares(of, {.temperature = 1});
  EXPECT_NEAR(plain[0], 2.0 / 6, 0.04);
  EXPECT_NEAR(plain[1], 3.0 / 6, 0.04);
  const auto cold = shares(of, {.temperature = 0.5});  // squares: 4, 9, 1
  EXPECT_NEAR(cold[0], 4.0 / 14, 0.04);
  EXPECT_NEAR(cold[1], 9.0 / 14, 0.04);
  const auto two = shares(of, {.temperature = 1, .top_k = 2});
  EXPECT_NEAR(two[0], 2.0 / 5, 0.04);
  EXPECT_EQ(two[2], 0);
}

TEST(Sampling, TopPKeepsTheFewestThatReachIt) {
  const Vector<float> of = logits({std::log(2.0F), std::log(3.0F), 0});
  EXPECT_EQ(shares(of, {.temperature = 1, .top_p = 0.49})[1], 1);
  EXPECT_EQ(shares(of, {.temperature = 1, .top_p = 0.55})[2], 0);
  EXPECT_NEAR(shares(of, {.temperature = 1, .top_p = 0.55})[0], 2.0 / 5, 0.04);
  EXPECT_GT(shares(of, {.temperature = 1, .top_p = 0.9})[2], 0);
  // The first of two equals is one half exactly.
  EXPECT_EQ(shares(logits({0, 0, -1000}), {.temperature = 1, .top_p = 0.5})[0], 1);
  // Of the two that top_k leaves, 3/5 are enough.
  EXPECT_EQ(shares(of, {.temperature = 1, .top_k = 2, .top_p = 0.59})[1], 1);
}

TEST(Sampling, RefusesBadParameters) {
  const Vector<float> one = logits({1});
  EXPECT_THROW(sample(Vector<float>(), {}, 0), InputError);
  EXPECT_THROW(sample(one, {.temperature = -1}, 0), InputError);
  EXPECT_THROW(sample(one, {.temperature = double(kNan)}, 0), InputError);
  EXPECT_THROW(sample(one, {.temperature = double(kInf)}, 0), InputError);
  EXPECT_THROW(sample(one, {.top_k = -1}, 0), InputError);
  EXPECT_THROW(sample(one, {.top_p = 0}, 0), InputError);
  EXPECT_THROW(sample(one, {.top_p = 1.5}, 0), InputError);
}

TEST(Sampling, LogProbabilitiesAreLogSoftmax) {
  const Vector<float> of = logits({1000, 1000, -kInf});
  EXPECT_DOUBLE_EQ(log_probability(of, 0), -std::log(2.0));
  EXPECT_EQ(log_probability(of, 2), -kInf);
  EXPECT_THROW(log_probability(of, 3), InputError);
  EXPECT_THROW(log_probability(of, -1), InputError);
}

TEST(Sampling, TheLikeliestTokensAreTheLargestLogits) {
  const Vector<float> of = logits({1, 3, kNan, 3, -kInf});
  const std::vector<TokenLogprob> top = top_log_probabilities(of, 9);
  ASSERT_EQ(top.size(), 5u);
  std::vector<int32_t> ids;
  for (const TokenLogprob& t : top) ids.push_back(t.token);
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 3, 0, 2, 4})) << "of equals, NaN among them, the lower";
  const Vector<float> plain = logits({0, 2, 1});
  EXPECT_EQ(
      top_log_probabilities(plain, 2),
      (std::vector<TokenLogprob>{{1, log_probability(plain, 1)}, {2, log_probability(plain, 2)}}));
  EXPECT_TRUE(top_log_probabilities(plain, 0).empty());
}

}  // namespace
}  // namespace loratory::reference
