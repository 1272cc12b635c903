#pragma once

#include <functional>

#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

/// Factors of the traffic's rate that headroom is looked for among: 1.025^step for
/// -kMostStep <= step <= kMostStep, that is 1/16 to 16 in steps of 2.5 %.
inline constexpr int kMostStep = 112;
/// No factor is low enough.
inline constexpr int kNoStep = -kMostStep - 1;

/// Products of 1.025 in IEEE arithmetic: the same on any machine. kNoStep: 0.
double rate_factor(int step);

/// The largest step at which `meets` holds, kNoStep if there is none, taking for granted that it
/// holds below and fails above. Begins at `hint` and doubles its stride until the answer is caught
/// between two steps, then halves: a hint that is right costs two calls. Where `meets` is not
/// monotone, the answer holds and the step above it fails. Steps below `lowest` are not tried.
int largest_step(const std::function<bool(int step)>& meets, int hint, int stride,
                 int lowest = -kMostStep);

/// The same requests and adapters, `factor` times as fast: what --rate-scale does.
/// Throws as scale_rate().
Trace at_rate(const Trace& trace, double factor);

}  // namespace loratory::sim
