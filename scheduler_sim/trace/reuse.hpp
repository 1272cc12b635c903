#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

inline constexpr uint64_t kUnboundedBlocks = std::numeric_limits<uint64_t>::max();

/// How much of the prompts an ideal prefix cache of `capacity_blocks` would have held.
struct PrefixReuse {
  uint64_t capacity_blocks = 0;
  uint64_t num_blocks = 0, hit_blocks = 0;  ///< of all prompts
  uint64_t num_tokens = 0, hit_tokens = 0;  ///< of the prompts that have blocks

  double block_ratio() const { return ratio(hit_blocks, num_blocks); }
  double token_ratio() const { return ratio(hit_tokens, num_tokens); }

 private:
  static double ratio(uint64_t part, uint64_t whole) {
    return whole == 0 ? 0 : double(part) / double(whole);
  }
};

/// The prefix-hit oracle: requests one after the other in trace order, no time, no concurrency. A
/// block hits when it is in the cache and every earlier block of its row hit; then the row's blocks
/// are touched from the last to the first (so that a prefix outlives what follows it) and the
/// cache evicts the least recently touched. A last, partial block counts as a block and with the
/// tokens it has. One entry per capacity, in the order given. Requests without blocks are left out.
///
/// O(entries of block_ids) per capacity; memory 16 bytes per distinct block.
/// Mooncake conversation, unbounded: 0.3664 of blocks, 0.3736 of tokens.
std::vector<PrefixReuse> prefix_reuse(const Trace& trace, std::span<const uint64_t> capacities);

}  // namespace loratory::sim
