#pragma once

#include "scheduler_sim/measured/measured_run.hpp"
#include "scheduler_sim/measured/simulate_run.hpp"
#include "scheduler_sim/sizing/engine_replay.hpp"

namespace loratory::sim {

/// What simulate_run would say of a run's batches, from its measured figures alone and without a
/// simulation: Little's law gives the running and the waiting requests, their rates the adapters
/// among them, the throughput of prompts what else is in a step.
///
///   running   R = output tokens/s x TPOT
///   waiting   of a queue that grows until the client has no more ports; looked at only where
///             slots are what it waits for
///   adapters  sum of 1 - exp(-R x share of the requests), at most max_loras
///   prompts   Poisson, requests/s x TPOT in a step, of the described law
///
/// No steps come back where that is not known: a run that is not measured, a closed loop, a run
/// that has more adapters than slots and waits for KV cache, or more than kMostCycledSlots slots
/// that change hands, because then vLLM copies many adapters again for each new one.
SimulatedRun column_batches(const MeasuredRun& run, const EngineSpec& engine,
                            const ServerTerms& server);

inline constexpr int64_t kMostCycledSlots = 64;

}  // namespace loratory::sim
