#pragma once

#include <cstdint>
#include <vector>

#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

/// Prompts for the requests of a trace, for engines that compute. Where the trace has tokens these
/// are they, modulo the vocabulary. Else a block's tokens follow from the block's id, and what the
/// trace does not describe from the request: so prompts begin alike where their blocks are equal,
/// and nowhere else (but for a chance of 1 / vocab^block_tokens).
/// Repeats  same trace, seed and vocabulary, same tokens; 10 ns a token.
class TracePrompts {
 public:
  /// `trace` outlives this object.
  TracePrompts(const Trace& trace, uint64_t seed, int64_t vocab)
      : trace_(trace), seed_(seed), vocab_(uint64_t(vocab)) {}

  std::vector<int32_t> prompt_of(size_t request) const;

 private:
  const Trace& trace_;
  uint64_t seed_, vocab_;
};

}  // namespace loratory::sim
