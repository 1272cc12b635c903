#pragma once

#include <string_view>
#include <vector>

#include "scheduler_sim/cost/step_profile.hpp"
#include "scheduler_sim/measured/bounded_fit.hpp"
#include "scheduler_sim/sizing/engine_replay.hpp"

namespace loratory::sim {

/// A term that a calibration fits, and how people read it.
struct ProfileTerm {
  std::string_view name;  ///< as in the file: "ns_per.num_seqs"
  std::string_view unit;  ///< of value / divisor
  double divisor = 1;     ///< from the file's unit to this one
  double& (*in)(StepProfile&) = nullptr;
};

/// The terms of a step and of loads, in the order of a table.
const std::vector<ProfileTerm>& step_terms();
/// The terms of ServerTerms.
const std::vector<ProfileTerm>& server_terms();

/// What is known of step_terms() before anything was measured, in their order: bounds, and priors
/// from the datasheet of the GPU, the sizes of the model, and published figures of other servers.
/// profile_terms.cpp has the source of each.
std::vector<FitParameter> step_priors(const EngineSpec& engine);

/// The profile at the priors: a start for a fit. Terms that are not fitted are physics: reading the
/// KV cache, and the products of a prompt's attention.
StepProfile prior_profile(const EngineSpec& engine);

/// The blocks of the engine's LoRA kernels with so many slots.
LoraGrid grid_of(const EngineSpec& engine, int64_t max_loras);

/// The engine with the profile's step times and copies.
EngineSpec with_profile(EngineSpec engine, const StepProfile& profile);

}  // namespace loratory::sim
