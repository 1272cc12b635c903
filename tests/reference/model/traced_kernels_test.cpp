// What the error bound of a forward pass is made of, worked by hand.
#include "reference/model/traced_kernels.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <vector>

namespace loratory::reference {
namespace {

double error_of(const Tape& tape, const Traced& number) {
  const int32_t nodes[] = {number.node};
  return tape.errors(nodes)[0];
}

// |w_0|·0.5 + |w_1|·0.25, and next to it nothing.
TEST(TracedKernels, AProductHasTheErrorsOfAllItsTerms) {
  Tape tape;
  const Tape::Scope scope(tape);
  Vector<Traced> x(2);
  x << Traced(1, tape.add(0.5)), Traced(1, tape.add(0.25));
  Matrix<float> w(1, 2);
  w << 3, -5;
  const Traced y = product(w, x)(0);
  EXPECT_EQ(y.value, -2);
  EXPECT_GE(error_of(tape, y), 2.75);
  EXPECT_LE(error_of(tape, y), 2.75 + 1e-4);
}

// The logits 0 and 1 with errors of 0.1 name one winner; with errors of 2 they do not.
TEST(TracedKernels, AnOpenChoiceOfExpertsHasNoBound) {
  for (const double error : {0.1, 2.0}) {
    Tape tape;
    const Tape::Scope scope(tape);
    Vector<Traced> logits(2);
    logits << Traced(0, tape.add(error)), Traced(1, tape.add(error));
    const Routing<Traced> routing = route(logits, 1, false);
    EXPECT_EQ(routing.experts[0], 1);
    EXPECT_EQ(std::isfinite(error_of(tape, routing.weights[0])), error < 1);
  }
}

// The mean square of 1 and 1, the first of them off by `error`, is off by at most `error` +
// error² / 2. What does not depend on it keeps its bound.
TEST(TracedKernels, ANormThatMayChangeMuchHasNoBound) {
  for (const double error : {0.41, 0.42}) {
    Tape tape;
    const Tape::Scope scope(tape);
    const Traced other(3, tape.add(0.25));
    std::vector<Traced> x = {Traced(1, tape.add(error)), Traced(1)};
    rms_norm(std::span(x), Vector<float>::Ones(2), 0);
    tape.finish_norms(0.5);
    const int32_t nodes[] = {x[0].node, x[1].node, other.node};
    const std::vector<double> errors = tape.errors(nodes);
    EXPECT_EQ(std::isfinite(errors[0]), error == 0.41);
    EXPECT_EQ(std::isfinite(errors[1]), error == 0.41);
    EXPECT_EQ(errors[2], 0.25);
  }
}

// To first order an error at right angles to the numbers of a norm does nothing to their mean
// square m. But it adds e²/2, which takes m^(-3/2)·e²/4 from 1/sqrt(m). A second norm meets both
// errors of the first one's results.
TEST(TracedKernels, ANormHasTheSquaresOfErrorsAtRightAngles) {
  Tape tape;
  const Tape::Scope scope(tape);
  const double e = 0.125;
  std::vector<Traced> x = {Traced(1), Traced(0, tape.add(e))};
  rms_norm(std::span(x), Vector<float>::Ones(2), 0);
  std::vector<Traced> y = x;
  rms_norm(std::span(y), Vector<float>::Ones(2), 0);
  tape.finish_norms(0.5);
  const double error_of_x = std::sqrt(8) * e * e / 4;
  EXPECT_GE(error_of(tape, x[0]), error_of_x);
  EXPECT_LE(error_of(tape, x[0]), error_of_x * (1 + 1e-4));
  const double error_of_y = std::sqrt(2) * (error_of_x * error_of_x + 2 * e * e) / 4;
  EXPECT_GE(error_of(tape, y[0]), error_of_y);
  EXPECT_LE(error_of(tape, y[0]), error_of_y * (1 + 1e-4));
}

}  // namespace
}  // namespace loratory::reference
