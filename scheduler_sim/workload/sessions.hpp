#pragma once

#include <cstdint>

#include "scheduler_sim/trace/trace.hpp"
#include "scheduler_sim/workload/length_law.hpp"

namespace loratory::sim {

/// Chat sessions and shared system prompts, as block ids for the prefix cache.
struct SessionOptions {
  uint32_t block_tokens = 0;  ///< tokens per block id; 0 = the content stays unknown
  double mean_turns = 1;      ///< >= 1; after each turn the user goes on with 1 - 1/mean_turns
  double mean_gap_s = 60;     ///< > 0; a next turn is ready after gap/2 + an exponential gap/2
  uint32_t num_system_prompts = 0;      ///< adapter i uses prompt i % num_system_prompts; 0 = none
  LengthLaw system_tokens = {};         ///< of one system prompt
  uint32_t max_prompt_tokens = 32'768;  ///< a session that would grow past it ends
};

/// Rewrites the requests of `trace`, whose `prompt_tokens` hold the user's own message, into turns:
///   first turn   prompt = system prompt + message
///   later turn   prompt = prompt and output of the turn before + message
/// An arrival goes on with the session of its adapter that has been ready longest, or opens one
/// where none is ready; so arrival times and the popularity of adapters stay exactly as they were.
///
/// Block ids: ceil(prompt / block_tokens) per request. A later turn repeats the full blocks of the
/// prompt before it; the reply is new content (an engine's blocks of generated text have keys of
/// their own here). Adapters with the same system prompt have the same ids: it is the prefix
/// cache's namespaces that must keep them apart. Adapter means its index in the trace at the call.
/// Asserts that the trace has no content yet. Cost: O(block ids + requests * log sessions).
void add_sessions(Trace& trace, const SessionOptions& options, uint64_t seed);

}  // namespace loratory::sim
