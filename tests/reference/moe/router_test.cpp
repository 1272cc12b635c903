// Routing of tokens to experts.
#include "reference/moe/router.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/base/input_error.hpp"

namespace loratory::reference {
namespace {

using testing::ElementsAre;

template <typename Real>
Vector<Real> logits(std::initializer_list<double> values) {
  Vector<Real> out(Eigen::Index(values.size()));
  for (size_t i = 0; i < values.size(); ++i) out(Eigen::Index(i)) = Real(values.begin()[i]);
  return out;
}

// ln 1, ln 2, ln 4, ln 1: probabilities 1/8, 2/8, 4/8, 1/8.
Vector<double> eighths() { return logits<double>({0, std::log(2.0), std::log(4.0), 0}); }

TEST(Router, KeepsTheProbabilitiesOfAllExpertsUnlessTheyAreRenormalised) {
  const Routing<double> kept = route<double>(eighths(), 2, false);
  EXPECT_THAT(kept.experts, ElementsAre(2, 1));
  EXPECT_THAT(kept.weights,
              ElementsAre(testing::DoubleNear(0.5, 1e-15), testing::DoubleNear(0.25, 1e-15)));
  const Routing<double> normed = route<double>(eighths(), 2, true);
  EXPECT_THAT(normed.experts, ElementsAre(2, 1));
  EXPECT_THAT(normed.weights, ElementsAre(testing::DoubleNear(2.0 / 3, 1e-15),
                                          testing::DoubleNear(1.0 / 3, 1e-15)));
}

TEST(Router, SoftmaxOfTheChosenIsTheRenormalisedSoftmaxOfAll) {
  const auto chosen = route_softmax_of_chosen<double>(eighths(), 3);
  const auto normed = route<double>(eighths(), 3, true);
  EXPECT_EQ(chosen.experts, normed.experts);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(chosen.weights[i], normed.weights[i], 1e-15);
}

TEST(Router, TheLowerIndexWinsATie) {
  EXPECT_THAT(route<float>(logits<float>({1, 3, 3, 1, 3}), 4, true).experts,
              ElementsAre(1, 2, 4, 0));
  EXPECT_THAT(route_softmax_of_chosen<float>(logits<float>({0, 0, 0}), 2).experts,
              ElementsAre(0, 1));
}

// Two logits that are one float once the largest is taken off: equal probabilities.
TEST(Router, ProbabilitiesDecideNotLogits) {
  EXPECT_THAT(route<float>(logits<float>({1, 0, 1e-12}), 2, false).experts, ElementsAre(0, 1));
  EXPECT_THAT(route_softmax_of_chosen<float>(logits<float>({1, 0, 1e-12}), 2).experts,
              ElementsAre(0, 2));
}

TEST(Router, LargeLogitsDoNotOverflow) {
  const Routing<float> routing = route<float>(logits<float>({-500, 1000, 999}), 2, true);
  EXPECT_THAT(routing.experts, ElementsAre(1, 2));
  EXPECT_FLOAT_EQ(routing.weights[0], float(1 / (1 + std::exp(-1.0))));
}

TEST(Router, NanGivesNanWeightsAndDistinctExperts) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& bad : {logits<float>({nan, 1, 2}), logits<float>({1, 2, nan})}) {
    const Routing<float> routing = route<float>(bad, 2, true);
    EXPECT_THAT(routing.experts, ElementsAre(0, 1));
    EXPECT_THAT(routing.weights, testing::Each(testing::IsNan()));
  }
}

TEST(Router, AllExpertsMayBeChosen) {
  EXPECT_THAT(route<double>(eighths(), 4, false).experts, ElementsAre(2, 1, 0, 3));
}

TEST(Router, KMustBeAmongTheExperts) {
  EXPECT_THROW(route<float>(logits<float>({1, 2}), 0, true), InputError);
  EXPECT_THROW(route<float>(logits<float>({1, 2}), 3, true), InputError);
  EXPECT_THROW(route_softmax_of_chosen<float>(logits<float>({1, 2}), 3), InputError);
}

}  // namespace
}  // namespace loratory::reference
