#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler_sim/measured/calibration.hpp"
#include "scheduler_sim/measured/recorded_steps.hpp"

namespace loratory::sim {

/// How far predicted steps are from recorded ones, as parts of those.
struct StepErrors {
  int64_t num_steps = 0;
  double median = 0, p95 = 0;  ///< of |predicted / recorded - 1|
  double total = 0;            ///< of all steps together: what a whole run would be off by
};

struct StepFit {
  StepProfile profile;
  std::vector<CalibratedTerm> terms;
  StepErrors fitted;  ///< of the steps that it saw
  StepErrors held;    ///< of those of held traces
};

/// A step profile from steps that an engine recorded:
///   constant + rows + decode context + prompt tokens + (query, key) pairs + a step with prompts
///   + tokens beyond a knee + a step with adapters + adapters + rank x tokens
/// each x what the steps say it takes (fit_bounded; none below 0). Nothing is known before: half
/// of a long step for a large value of each term is as likely as nothing. `described` says
/// whose steps they are; its terms are overwritten.
///
/// Throws InputError if there are fewer than kLeastSteps to fit, or none held.
StepFit fit_steps(std::span<const RecordedStep> steps, const StepProfile& described);

inline constexpr int64_t kLeastSteps = 50;

}  // namespace loratory::sim
