#include "scheduler_sim/measured/step_fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/base/input_error.hpp"

namespace loratory::sim {
namespace {

constexpr double kStepNoise = 0.03;   // of a step, from one time to the next
constexpr double kLongStep = 0.95;    // of the steps are shorter than a long one
constexpr double kWidestPrior = 0.5;  // of a long step, for a large value of a term
constexpr size_t kKnees = 12;
constexpr double kLeastPastKnee = 1e-3;  // of sigma, what counts as nothing
constexpr double kMostOfStep = 10;       // the same for the bounds

// A term that direct step times tell, and its value in a batch.
struct FittedTerm {
  ProfileTerm term;
  int64_t (*value)(const BatchShape&);  // null: the knee of tokens
};

template <size_t Index>
constexpr double& coefficient_of(StepProfile& profile) {
  return profile.ns_per[Index];
}

constexpr size_t kPastKnee = 1;  // in fitted_terms(): ns_per_token beyond the knee
constexpr size_t kKnee = 2;

template <size_t Index>
FittedTerm linear(std::string_view name, std::string_view unit, double divisor) {
  return {{name, unit, divisor, coefficient_of<Index>}, kStepTerms[Index].value};
}

const std::vector<FittedTerm>& fitted_terms() {
  using P = StepProfile;
  static const std::vector<FittedTerm> kTerms{
      {{"constant_ns", "ms", 1e6, [](P& p) -> double& { return p.constant_ns; }},
       [](const BatchShape&) { return int64_t{1}; }},
      {{"above.ns_per_token", "us", 1e3, [](P& p) -> double& { return p.above_ns_per_token; }},
       [](const BatchShape& s) { return s.num_tokens; }},
      {{"above.tokens", "tokens", 1, [](P& p) -> double& { return p.above_tokens; }}, nullptr},
      linear<step_term("num_seqs")>("ns_per.num_seqs", "us", 1e3),
      linear<step_term("decode_context_tokens")>("ns_per.decode_context_tokens", "ns", 1),
      linear<step_term("num_prefill_tokens")>("ns_per.num_prefill_tokens", "us", 1e3),
      linear<step_term("prefill_pairs")>("ns_per.prefill_pairs", "ns", 1),
      linear<step_term("prefill_step")>("ns_per.prefill_step", "us", 1e3),
      linear<step_term("lora_step")>("ns_per.lora_step", "us", 1e3),
      linear<step_term("num_adapters")>("ns_per.num_adapters", "us", 1e3),
      linear<step_term("lora_rank_tokens")>("ns_per.lora_rank_tokens", "ns", 1)};
  return kTerms;
}

using Steps = std::vector<const RecordedStep*>;

Steps steps_that(std::span<const RecordedStep> steps, bool are_held) {
  Steps chosen;
  for (const RecordedStep& step : steps) {
    if (step.is_held == are_held) chosen.push_back(&step);
  }
  return chosen;
}

// What all but a few of the values are below.
double most_of(std::vector<double> values, double part) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[size_t(part * double(values.size() - 1))];
}

std::vector<double> times_of(const Steps& steps) {
  std::vector<double> ns;
  for (const RecordedStep* step : steps) ns.push_back(double(step->ns));
  return ns;
}

// The search begins below the steps: half of a short one, and nothing for what varies.
FitParameter linear_prior(const FittedTerm& term, const Steps& steps) {
  std::vector<double> values;
  for (const RecordedStep* step : steps) {
    if (const int64_t value = term.value(step->shape); value > 0) values.push_back(double(value));
  }
  if (values.empty()) return {};  // no step has it: it stays at 0
  const double whole = most_of(times_of(steps), kLongStep) / most_of(values, kLongStep);
  FitParameter prior{.high = kMostOfStep * whole, .sigma = kWidestPrior * whole};
  const FittedTerm* first = fitted_terms().data();
  if (&term == first) prior.start = most_of(times_of(steps), 1 - kLongStep) / 2;
  if (&term == first + kPastKnee) prior.start = whole / 100;  // or nothing would move the knee
  return prior;
}

std::vector<FitParameter> priors_of(const Steps& steps) {
  std::vector<FitParameter> priors;
  for (const FittedTerm& term : fitted_terms()) {
    priors.push_back(term.value == nullptr ? FitParameter{} : linear_prior(term, steps));
  }
  return priors;
}

// Token counts of the steps, kKnees of them at most, ascending: where a knee is looked for.
std::vector<double> knees_of(const Steps& steps) {
  std::vector<double> tokens;
  for (const RecordedStep* step : steps) tokens.push_back(double(step->shape.num_tokens));
  std::ranges::sort(tokens);
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  std::vector<double> knees;
  const size_t count = std::min(kKnees, tokens.size());
  for (size_t i = 0; i < count; ++i) knees.push_back(tokens[i * tokens.size() / count]);
  return knees;
}

void set_terms(StepProfile& profile, std::span<const double> values) {
  for (size_t i = 0; i < values.size(); ++i) fitted_terms()[i].term.in(profile) = values[i];
}

StepErrors errors_of(const StepProfile& profile, const Steps& steps) {
  StepErrors errors{.num_steps = std::ssize(steps)};
  const ProfileModel model(profile);
  std::vector<double> sizes;
  double predicted = 0, recorded = 0;
  for (const RecordedStep* step : steps) {
    const auto ns = double(model.step_ns(step->shape));
    sizes.push_back(std::fabs(ns / double(step->ns) - 1));
    predicted += ns;
    recorded += double(step->ns);
  }
  std::ranges::sort(sizes);
  errors.median = sizes[sizes.size() / 2];
  errors.p95 = sizes[size_t(0.95 * double(sizes.size() - 1))];
  errors.total = predicted / recorded - 1;
  return errors;
}

// There is a knee where tokens beyond it take time.
void settle_knee(const std::vector<FitParameter>& priors, std::vector<FittedParameter>& values) {
  if (values[kPastKnee].value > kLeastPastKnee * priors[kPastKnee].sigma) return;
  values[kPastKnee] = values[kKnee] = {};
}

double soft_l1(std::span<const double> residuals) {
  double sum = 0;
  for (const double r : residuals) sum += std::hypot(1.0, r / kStepNoise) - 1;
  return sum;
}

// With the knee held, all other terms are linear: so the search tries some knees, and then moves
// the best one as far as its neighbours.
std::vector<FittedParameter> best_terms(const Steps& steps) {
  StepProfile profile;
  const auto residuals = [&](std::span<const double> values, std::span<double> out) {
    set_terms(profile, values);
    const ProfileModel model(profile);
    for (size_t i = 0; i < steps.size(); ++i) {
      out[i] = double(model.step_ns(steps[i]->shape)) / double(steps[i]->ns) - 1;
    }
  };
  std::vector<FitParameter> priors = priors_of(steps);
  const auto fit_at = [&](const FitParameter& knee, std::vector<FittedParameter>& values) {
    priors[kKnee] = knee;
    values = fit_bounded(priors, steps.size(), kStepNoise, residuals);
    std::vector<double> found, out(steps.size());
    for (const FittedParameter& value : values) found.push_back(value.value);
    residuals(found, out);
    return soft_l1(out);
  };
  const std::vector<double> knees = knees_of(steps);
  std::vector<FittedParameter> best, values;
  double least = std::numeric_limits<double>::infinity();
  size_t at = 0;
  for (size_t i = 0; i < knees.size(); ++i) {
    const FitParameter held{
        .start = knees[i], .low = knees[i], .high = knees[i], .prior = knees[i]};
    const double loss = fit_at(held, values);
    if (loss < least) least = loss, best = values, at = i;
  }
  const double low = knees[at == 0 ? 0 : at - 1], high = knees[std::min(at + 1, knees.size() - 1)];
  const FitParameter free{.start = knees[at],
                          .low = low,
                          .high = high,
                          .prior = knees[at],
                          .sigma = std::max(high - low, 1.0)};
  if (fit_at(free, values) < least) best = values;
  settle_knee(priors, best);
  return best;
}

void check(const Steps& fitted, const Steps& held) {
  if (std::ssize(fitted) < kLeastSteps) {
    throw InputError("calibrate",
                     fmt::format("{} recorded steps are too few to fit", fitted.size()),
                     fmt::format("give {} or more", kLeastSteps));
  }
  if (held.empty()) {
    throw InputError("calibrate", "no recorded step is held, so nothing can judge the fit",
                     "mark the steps of another trace with held = 1");
  }
}

}  // namespace

StepFit fit_steps(std::span<const RecordedStep> steps, const StepProfile& described) {
  const Steps fitted = steps_that(steps, false), held = steps_that(steps, true);
  check(fitted, held);
  const std::vector<FittedParameter> values = best_terms(fitted);
  StepFit fit;
  fit.profile = described;
  for (size_t i = 0; i < values.size(); ++i) {
    const ProfileTerm& term = fitted_terms()[i].term;
    term.in(fit.profile) = values[i].value;
    fit.terms.push_back({&term, values[i].value, values[i].error, 0, 0, values[i].is_identified});
  }
  fit.fitted = errors_of(fit.profile, fitted);
  fit.held = errors_of(fit.profile, held);
  return fit;
}

}  // namespace loratory::sim
