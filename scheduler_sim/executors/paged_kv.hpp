#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/model/forward.hpp"
#include "scheduler_sim/prefix_cache/block_pool.hpp"

namespace loratory::sim {

/// One sequence of a step, as the scheduler has laid it out.
struct KvSequence {
  std::span<const BlockId> blocks;  ///< its block table
  uint32_t num_computed = 0;        ///< tokens whose keys and values are in there already
  uint32_t num_tokens = 0;          ///< tokens that the step adds
};

/// Keys and values of all sequences in one pool of blocks:
///   [num_blocks][block_size][num_layers][key, value][kv heads x head_dim], float.
/// Position p of a sequence lies in block blocks[p / block_size], place p mod block_size. So a
/// block that two tables hold (a prefix hit) is read by both, and was computed once.
///
/// Everything is NaN at first, and a block is again when it gets a new owner otherwise than by a
/// prefix hit: what an earlier request left there can not be read unnoticed.
/// Errors   asserted: a position outside its sequence, a table that is too short.
class PagedKv final : public reference::KvCache<float> {
 public:
  struct Shape {
    uint32_t num_blocks = 0;  ///< the null block included
    uint32_t block_size = 0;
    int64_t num_layers = 0;
    int64_t row_size = 0;  ///< kv heads x head_dim
  };
  explicit PagedKv(const Shape& shape);

  /// From now on sequence i is `sequences[i]`; the tables live until the next call. Blocks behind
  /// the computed tokens are new in this step: they are poisoned.
  void begin_step(std::vector<KvSequence> sequences);

  std::span<float> key(int64_t layer, int64_t sequence, int64_t position) override {
    return row(layer, sequence, position, 0);
  }
  std::span<float> value(int64_t layer, int64_t sequence, int64_t position) override {
    return row(layer, sequence, position, 1);
  }
  /// All numbers of one block.
  std::span<float> block(BlockId id);

 private:
  std::span<float> row(int64_t layer, int64_t sequence, int64_t position, int64_t which);

  Shape shape_;
  int64_t block_numbers_;  // in one block
  std::vector<float> pool_;
  std::vector<KvSequence> sequences_;
};

}  // namespace loratory::sim
