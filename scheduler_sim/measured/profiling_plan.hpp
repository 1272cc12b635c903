#pragma once

#include <cstdint>

#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

/// What an engine that is to be profiled takes.
struct ProfilingLimits {
  int64_t max_num_seqs = 256;
  int64_t max_model_len = 4096;
  int32_t max_loras = 8;
  uint32_t rank = 16;
};

struct ProfilingPlan {
  Trace trace;  ///< bursts, one each nanosecond; each waits for the one before to end
  uint64_t first_held_id = 0;  ///< requests from here on are of held bursts
};

/// A short run that tells the terms of a step. First prompts alone, of all lengths to half of the
/// longest: they tell from how many tokens on a step is bound by FLOPs. Then bursts of all seats
/// with short prompts, a quarter of them with longer ones and a few with long ones, for the base
/// model, for one adapter and for all slots. Half of a burst's requests end every four steps, so
/// each burst has steps of all sizes down to one row. Then come held bursts, whose requests have
/// random lengths and adapters.
///
/// Repeats  same limits and seed, same plan.
ProfilingPlan profiling_plan(const ProfilingLimits& limits, uint64_t seed);

}  // namespace loratory::sim
