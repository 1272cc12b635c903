#include "scheduler_sim/measured/bounded_fit.hpp"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <nlopt.hpp>
#include <stdexcept>

#include "reference/base/input_error.hpp"

namespace loratory::sim {
namespace {

constexpr double kLeastKnown = 0.9;   // of sigma: what is left of it where nothing was learnt
constexpr double kDifference = 1e-3;  // of sigma
constexpr int kMostEvaluations = 400;
constexpr double kTolerance = 1e-10;

// In units of sigma from the prior, so that all parameters are about 1.
class Problem {
 public:
  Problem(const std::vector<FitParameter>& parameters, std::vector<size_t> free,
          size_t num_residuals, double noise, const Residuals& residuals)
      : parameters_(parameters),
        free_(std::move(free)),
        noise_(noise),
        residuals_(residuals),
        values_(parameters.size()),
        at_(num_residuals),
        beside_(num_residuals) {
    for (size_t i = 0; i < parameters.size(); ++i) values_[i] = parameters[i].prior;
  }

  size_t num_free() const { return free_.size(); }
  const FitParameter& parameter(size_t i) const { return parameters_[free_[i]]; }
  double scaled(size_t i, double value) const {
    return (value - parameter(i).prior) / parameter(i).sigma;
  }
  double value(size_t i, double scaled) const {
    return parameter(i).prior + scaled * parameter(i).sigma;
  }

  // Residuals and, one column for each free parameter, their derivatives.
  void differentiate(const std::vector<double>& x, Eigen::VectorXd& residuals,
                     Eigen::MatrixXd& jacobian) {
    evaluate(x, at_);
    residuals = Eigen::Map<Eigen::VectorXd>(at_.data(), Eigen::Index(at_.size()));
    jacobian.resize(residuals.size(), Eigen::Index(x.size()));
    std::vector<double> beside = x;
    for (size_t i = 0; i < x.size(); ++i) {
      const double step =
          value(i, x[i] + kDifference) <= parameter(i).high ? kDifference : -kDifference;
      beside[i] = x[i] + step;
      evaluate(beside, beside_);
      beside[i] = x[i];
      for (size_t r = 0; r < at_.size(); ++r) {
        jacobian(Eigen::Index(r), Eigen::Index(i)) = (beside_[r] - at_[r]) / step;
      }
    }
  }

  double loss(const std::vector<double>& x, std::vector<double>& gradient) {
    Eigen::VectorXd residuals;
    Eigen::MatrixXd jacobian;
    differentiate(x, residuals, jacobian);
    double sum = 0;
    Eigen::VectorXd slope(residuals.size());
    for (Eigen::Index r = 0; r < residuals.size(); ++r) {
      const double root = std::hypot(1.0, residuals[r] / noise_);
      sum += 2 * (root - 1);
      slope[r] = 2 * residuals[r] / (noise_ * noise_ * root);
    }
    const Eigen::VectorXd of_data = jacobian.transpose() * slope;
    for (size_t i = 0; i < x.size(); ++i) {
      sum += x[i] * x[i];
      if (!gradient.empty()) gradient[i] = of_data[Eigen::Index(i)] + 2 * x[i];
    }
    return sum;
  }

 private:
  void evaluate(const std::vector<double>& x, std::vector<double>& residuals) {
    for (size_t i = 0; i < x.size(); ++i) values_[free_[i]] = value(i, x[i]);
    residuals_(values_, residuals);
    for (const double r : residuals) {
      if (!std::isfinite(r)) throw std::runtime_error("a fit met a residual that is not finite");
    }
  }

  const std::vector<FitParameter>& parameters_;
  std::vector<size_t> free_;
  double noise_;
  const Residuals& residuals_;
  std::vector<double> values_, at_, beside_;
};

double loss_for_nlopt(const std::vector<double>& x, std::vector<double>& gradient, void* problem) {
  return static_cast<Problem*>(problem)->loss(x, gradient);
}

std::vector<double> start_of(const Problem& problem) {
  std::vector<double> x(problem.num_free());
  for (size_t i = 0; i < x.size(); ++i) {
    const FitParameter& p = problem.parameter(i);
    x[i] = problem.scaled(i, std::clamp(p.start, p.low, p.high));
  }
  return x;
}

std::vector<double> minimise(Problem& problem) {
  const size_t n = problem.num_free();
  std::vector<double> low(n), high(n), x = start_of(problem);
  for (size_t i = 0; i < n; ++i) {
    low[i] = problem.scaled(i, problem.parameter(i).low);
    high[i] = problem.scaled(i, problem.parameter(i).high);
  }
  nlopt::opt optimiser(nlopt::LD_SLSQP, unsigned(n));
  optimiser.set_lower_bounds(low);
  optimiser.set_upper_bounds(high);
  optimiser.set_min_objective(loss_for_nlopt, &problem);
  optimiser.set_maxeval(kMostEvaluations);
  optimiser.set_ftol_rel(kTolerance);
  double least = 0;
  try {
    optimiser.optimize(x, least);
  } catch (const nlopt::roundoff_limited&) {  // x is as good as numbers of this size can be
  } catch (const std::runtime_error&) {       // it finds no way on from x
    throw InputError("calibrate", "no terms fit figures that are so far apart",
                     "leave out rows that were not measured");
  }
  return x;
}

// Standard errors, in units of sigma.
std::vector<double> errors_at(Problem& problem, const std::vector<double>& x, double noise) {
  Eigen::VectorXd residuals;
  Eigen::MatrixXd jacobian;
  problem.differentiate(x, residuals, jacobian);
  const double rms = residuals.size() == 0 ? 0 : residuals.norm() / std::sqrt(residuals.size());
  const double scale = std::max(noise, rms);
  Eigen::MatrixXd information = jacobian.transpose() * jacobian / (scale * scale);
  information.diagonal().array() += 1;
  const Eigen::MatrixXd covariance =
      information.ldlt().solve(Eigen::MatrixXd::Identity(information.rows(), information.cols()));
  std::vector<double> errors(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    errors[i] = std::sqrt(covariance(Eigen::Index(i), Eigen::Index(i)));
  }
  return errors;
}

}  // namespace

std::vector<FittedParameter> fit_bounded(const std::vector<FitParameter>& parameters,
                                         size_t num_residuals, double noise,
                                         const Residuals& residuals) {
  std::vector<FittedParameter> fitted(parameters.size());
  std::vector<size_t> free;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].low < parameters[i].high) free.push_back(i);
  }
  // Only the worst leaves: others may be told apart without it. Most are found before the search.
  bool is_searched = false;
  while (!free.empty()) {
    Problem problem(parameters, free, num_residuals, noise, residuals);
    const std::vector<double> x = is_searched ? minimise(problem) : start_of(problem);
    const std::vector<double> errors = errors_at(problem, x, noise);
    const auto worst = std::ranges::max_element(errors);
    if (*worst >= kLeastKnown) {
      free.erase(free.begin() + (worst - errors.begin()));
      continue;
    }
    for (size_t i = 0; i < free.size(); ++i) {
      fitted[free[i]] = {problem.value(i, x[i]), errors[i] * parameters[free[i]].sigma, true};
    }
    if (is_searched) break;
    is_searched = true;
  }
  for (size_t i = 0; i < fitted.size(); ++i) {
    if (std::ranges::count(free, i) == 0) {
      fitted[i] = {parameters[i].prior, parameters[i].sigma, false};
    }
  }
  return fitted;
}

}  // namespace loratory::sim
