#include "scheduler_sim/executors/paged_kv.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "reference/base/check.hpp"

namespace loratory::sim {
namespace {

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

}  // namespace

PagedKv::PagedKv(const Shape& shape)
    : shape_(shape),
      block_numbers_(int64_t{shape.block_size} * shape.num_layers * 2 * shape.row_size),
      pool_(size_t(shape.num_blocks * block_numbers_), kPoison) {}

std::span<float> PagedKv::block(BlockId id) {
  LORATORY_ASSERT(id < shape_.num_blocks, "a block of this pool");
  return {pool_.data() + id * block_numbers_, size_t(block_numbers_)};
}

void PagedKv::begin_step(std::vector<KvSequence> sequences) {
  sequences_ = std::move(sequences);
  for (const KvSequence& s : sequences_) {
    const uint64_t num_places = uint64_t{s.blocks.size()} * shape_.block_size;
    LORATORY_ASSERT(s.num_computed + uint64_t{s.num_tokens} <= num_places,
                    "the block table has a place for every token");
    // Matched and earlier blocks hold computed tokens; the scheduler allocates no block early.
    const size_t first_new = (s.num_computed + shape_.block_size - 1) / shape_.block_size;
    for (size_t i = first_new; i < s.blocks.size(); ++i) {
      std::ranges::fill(block(s.blocks[i]), kPoison);
    }
  }
}

std::span<float> PagedKv::row(int64_t layer, int64_t sequence, int64_t position, int64_t which) {
  LORATORY_ASSERT(sequence >= 0 && sequence < int64_t(sequences_.size()), "a sequence of the step");
  LORATORY_ASSERT(layer >= 0 && layer < shape_.num_layers, "a layer of the model");
  const KvSequence& s = sequences_[size_t(sequence)];
  LORATORY_ASSERT(position >= 0 && position < int64_t{s.num_computed} + s.num_tokens,
                  "a position of the sequence");
  const int64_t place = position % shape_.block_size;
  const int64_t index = ((place * shape_.num_layers + layer) * 2 + which) * shape_.row_size;
  return block(s.blocks[size_t(position / shape_.block_size)])
      .subspan(size_t(index), size_t(shape_.row_size));
}

}  // namespace loratory::sim
