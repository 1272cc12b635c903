#include "scheduler_sim/measured/server_fit.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "scheduler_sim/measured/predict_runs.hpp"
#include "scheduler_sim/metrics/quantiles.hpp"
#include "scheduler_sim/workload/sharegpt.hpp"

namespace loratory::sim {
namespace {

constexpr int kStopDraws = 20'000;
constexpr double kMostTokensToStop = 1e6;
constexpr double kRatioNoise = 0.03;  // of a ratio

// Outputs of the described law that end early at a constant hazard.
class OutputLaw {
 public:
  OutputLaw(double mean_prompt_tokens, double mean_output_tokens) {
    const ShareGptLengths law(mean_prompt_tokens, mean_output_tokens);
    const RandomStream lengths(0, Purpose::prompt_tokens), stops(0, Purpose::output_tokens);
    for (uint64_t i = 0; i < kStopDraws; ++i) {
      asked_.push_back(double(law.draw(lengths, i).output_tokens));
      stops_.push_back(stops.exponential(i));
    }
  }
  double mean(double tokens_to_stop) const {
    double sum = 0;
    for (size_t i = 0; i < asked_.size(); ++i) {
      const double stop = tokens_to_stop > 0 ? tokens_to_stop * stops_[i] : asked_[i];
      sum += std::floor(std::max(1.0, std::min(asked_[i], stop)));
    }
    return sum / double(asked_.size());
  }
  // The mean draw at which outputs have this mean, by bisection of its logarithm.
  double tokens_to_stop(double mean_tokens) const {
    if (mean(kMostTokensToStop) <= mean_tokens) return 0;
    double low = 0, high = std::log(kMostTokensToStop);
    for (int i = 0; i < 50; ++i) {
      const double middle = (low + high) / 2;
      (mean(std::exp(middle)) < mean_tokens ? low : high) = middle;
    }
    return std::exp(high);
  }

 private:
  std::vector<double> asked_, stops_;
};

// Mean output tokens of completed requests.
double measured_output(const MeasuredRun& run) {
  return run.measured.output_tps * run.client.duration_s / run.measured.completed;
}

bool finished_nearly_all(const MeasuredRun& run) {
  if (run.client.duration_s == 0 || run.offered_rps() == 0) return false;  // a closed loop
  return run.measured.completed > 0.95 * run.offered_rps() * run.client.duration_s;
}

// Median, its standard error as if the values were normal.
FittedParameter location(std::vector<double> values) {
  const double middle = quantile(values, 0.5);
  std::vector<double> distances;
  for (const double value : values) distances.push_back(std::fabs(value - middle));
  constexpr double kSigmaOfMad = 1.4826, kMedianLoss = 1.2533;
  return {middle,
          kMedianLoss * kSigmaOfMad * quantile(distances, 0.5) / std::sqrt(double(values.size())),
          true};
}

FittedParameter fit_frontend(std::span<const MeasuredRun> runs,
                             std::span<const SimulatedRun> simulated, const ServerTerms& now) {
  std::vector<double> missing_ms;
  for (size_t i = 0; i < runs.size(); ++i) {
    const double measured = runs[i].measured.mean_ttft_ms;
    const double ms = measured - simulated[i].measures.mean_ttft_ms;
    if (measured <= kSlowTtftMs && std::isfinite(ms)) missing_ms.push_back(ms);
  }
  const FitParameter& prior = server_priors()[1];
  if (missing_ms.empty()) return {prior.prior, prior.sigma, false};
  FittedParameter fitted = location(missing_ms);
  fitted.value = std::clamp(now.frontend_ms + fitted.value, prior.low, prior.high);
  return fitted;
}

// Milliseconds of every poll, and microseconds for each set of adapters. A gap between two tokens
// looks longer by the part of the time that polls take, because those within one leave as one.
std::vector<FittedParameter> fit_polls(std::span<const MeasuredRun> runs,
                                       std::span<const SimulatedRun> simulated,
                                       const ServerTerms& now) {
  std::vector<size_t> polled;
  for (size_t i = 0; i < runs.size(); ++i) {
    const bool is_known = runs[i].measured.mean_itl_ms > 0 && runs[i].measured.mean_tpot_ms > 0;
    if (is_known && runs[i].client.poll_interval_s > 0 && simulated[i].mean_gap_ns > 0) {
      polled.push_back(i);
    }
  }
  const auto residuals = [&](std::span<const double> values, std::span<double> out) {
    for (size_t k = 0; k < polled.size(); ++k) {
      const MeasuredRun& run = runs[polled[k]];
      const SimulatedRun& s = simulated[polled[k]];
      const double more_us = (values[1] - now.metrics_us_per_adapter_set) * s.mean_adapter_sets +
                             (values[2] - now.metrics_us_per_name) * s.mean_adapter_names;
      const double more_ms = values[0] - now.metrics_ms + more_us / 1e3;
      const double longer = s.mean_gap_ns / 1e6 * more_ms / (run.client.poll_interval_s * 1e3);
      const double ratio = (s.measures.mean_itl_ms + longer) / s.measures.mean_tpot_ms;
      out[k] = ratio / (run.measured.mean_itl_ms / run.measured.mean_tpot_ms) - 1;
    }
  };
  std::vector<FitParameter> parameters(server_priors().begin() + 2, server_priors().end());
  parameters[0].start = now.metrics_ms;
  parameters[1].start = now.metrics_us_per_adapter_set;
  parameters[2].start = now.metrics_us_per_name;
  return fit_bounded(parameters, polled.size(), kRatioNoise, residuals);
}

}  // namespace

const std::vector<FitParameter>& server_priors() {
  static const std::vector<FitParameter> kPriors{
      // Nothing is known of how often a model stops early.
      {.start = 0, .low = 0, .high = kMostTokensToStop, .prior = 0, .sigma = kMostTokensToStop},
      // HTTP, tokenizer and a queue between two processes, 1 ms each, perhaps several.
      {.start = 3, .low = 0, .high = 100, .prior = 3, .sigma = 5},
      // The times between polls of 36 servers, vLLM 0.8.5, whose counters were read every 2 s:
      // docs/fidelity.md, "Metrics". Another machine may be half or twice as fast.
      {.start = 6.6, .low = 0, .high = 1000, .prior = 6.6, .sigma = 6.6},
      {.start = 19, .low = 0, .high = 1000, .prior = 19, .sigma = 9.5},
      {.start = 0.13, .low = 0, .high = 10, .prior = 0.13, .sigma = 0.065}};
  return kPriors;
}

FittedParameter mean_tokens_to_stop(std::span<const MeasuredRun> runs) {
  std::vector<double> ratios;
  double prompt = 0, output = 0;
  for (const MeasuredRun& run : runs) {
    if (run.lengths != LengthKind::sharegpt || !finished_nearly_all(run)) continue;
    ratios.push_back(measured_output(run) / run.mean_output_tokens);
    prompt += run.mean_prompt_tokens;
    output += run.mean_output_tokens;
  }
  const FitParameter& prior = server_priors()[0];
  if (ratios.empty()) return {prior.prior, prior.sigma, false};
  const auto num = double(ratios.size());
  const OutputLaw law(prompt / num, output / num);
  const FittedParameter ratio = location(ratios);
  const double asked = law.mean(0);
  const double stop = law.tokens_to_stop(asked * ratio.value);
  const double beside = law.tokens_to_stop(asked * (ratio.value - ratio.error));
  return {stop, std::fabs(stop - beside), stop > 0};
}

ServerFit fit_server(std::span<const MeasuredRun> runs, std::span<const SimulatedRun> simulated,
                     const ServerTerms& now) {
  ServerFit out{.server = now, .terms = {mean_tokens_to_stop(runs)}};
  out.terms.push_back(fit_frontend(runs, simulated, now));
  std::ranges::copy(fit_polls(runs, simulated, now), std::back_inserter(out.terms));
  out.server = {.frontend_ms = out.terms[1].value,
                .mean_tokens_to_stop = out.terms[0].value,
                .metrics_ms = out.terms[2].value,
                .metrics_us_per_adapter_set = out.terms[3].value,
                .metrics_us_per_name = out.terms[4].value};
  return out;
}

}  // namespace loratory::sim
