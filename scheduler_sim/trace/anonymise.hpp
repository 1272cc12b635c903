#pragma once

#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

/// Tokens of the blocks that stand for token ids.
inline constexpr uint32_t kAnonymousBlockTokens = 16;

/// Takes the names and the content out of a trace, so that a replay stays the same but for them:
/// adapters become adapter-1, adapter-2, ..., ids request-1, ..., sessions 1, 2, ... and block ids
/// 0, 1, ..., each in order of first use; equal ones stay equal. Token ids become blocks of
/// kAnonymousBlockTokens, equal where the prompts are equal up to there. The first request arrives
/// at 0. Lengths, gaps, ranks, priorities and cancellations stay. Without randomness: same trace,
/// same result.
void anonymise(Trace& trace);

}  // namespace loratory::sim
