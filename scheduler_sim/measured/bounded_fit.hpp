#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace loratory::sim {

/// A number that a fit looks for, and what was known of it before: about `prior`, +- `sigma`.
struct FitParameter {
  double start = 0, low = 0, high = 0;
  double prior = 0, sigma = 1;
};

struct FittedParameter {
  double value = 0;
  double error = 0;  ///< standard error, what was known before included
  bool is_identified = false;
};

/// Sets the residuals at `values`, one for each parameter.
using Residuals = std::function<void(std::span<const double> values, std::span<double> residuals)>;

/// The most likely values: minimises, within the bounds,
///   sum over residuals of 2 noise^2 (sqrt(1 + (r / noise)^2) - 1)   (soft L1: outliers weigh less)
///   + noise^2 sum over parameters of ((value - prior) / sigma)^2.
/// A parameter is identified if the residuals tell something of it: error < 0.9 sigma. The others
/// stay at their priors, and so do those whose bounds are equal. Errors are the square roots of the
/// diagonal of the inverse of the Gauss-Newton matrix, with the noise or, if larger, the root mean
/// square of the residuals.
///
/// Sequential quadratic programming (NLopt, LD_SLSQP) with differences for derivatives: smooth
/// residuals that cost little. Repeats. Throws std::runtime_error if a residual is not finite.
std::vector<FittedParameter> fit_bounded(const std::vector<FitParameter>& parameters,
                                         size_t num_residuals, double noise,
                                         const Residuals& residuals);

}  // namespace loratory::sim
