#pragma once

#include <vector>

#include "scheduler_sim/prefix_cache/block_pool.hpp"

namespace loratory::sim {

/// The free blocks of a copy of the pool, in the order in which it hands them out: plain free ones
/// by index, then cached ones.
inline std::vector<BlockId> handed_out(BlockPool pool) {
  std::vector<BlockId> blocks;
  while (pool.num_allocatable() > 0) blocks.push_back(pool.allocate());
  return blocks;
}

}  // namespace loratory::sim
