#include "scheduler_sim/prefix_cache/block_pool.hpp"

#include <algorithm>
#include <bit>

#include "reference/base/check.hpp"

namespace loratory::sim {

// --- LowestFirstSet -------------------------------------------------------------------------

LowestFirstSet::LowestFirstSet(uint32_t capacity) {
  size_t words = capacity;
  do {
    words = (words + 63) / 64;
    levels_.emplace_back(words, 0);
  } while (words > 1);
}

// The id's word was empty until now.
void LowestFirstSet::enter_word(BlockId id) {
  size_t index = id / 64;
  lowest_word_ = std::min(lowest_word_, index);
  for (size_t k = 1; k < levels_.size(); ++k) {
    uint64_t& word = levels_[k][index / 64];
    const bool was_empty = word == 0;
    word |= uint64_t{1} << (index % 64);
    if (!was_empty) return;
    index /= 64;
  }
}

// The lowest word is empty now.
void LowestFirstSet::leave_word() {
  size_t index = lowest_word_;
  for (size_t k = 1; k < levels_.size(); ++k) {
    uint64_t& word = levels_[k][index / 64];
    word &= ~(uint64_t{1} << (index % 64));
    if (word != 0) break;
    index /= 64;
  }
  lowest_word_ = SIZE_MAX;
  if (size_ == 0) return;
  lowest_word_ = 0;
  for (size_t k = levels_.size(); k-- > 1;) {
    lowest_word_ = lowest_word_ * 64 + size_t(std::countr_zero(levels_[k][lowest_word_]));
  }
}

// --- BlockPool ------------------------------------------------------------------------------

BlockPool::BlockPool(uint32_t num_blocks)
    : ref_counts_(num_blocks, 0), blocks_(num_blocks), plain_free_(num_blocks) {
  LORATORY_ASSERT(num_blocks >= 1, "block 0 is the null block");
  for (BlockId id = 1; id < num_blocks; ++id) plain_free_.insert(id);
}

BlockId BlockPool::find(BlockKey key) const {
  const auto it = published_.find(key);
  return it == published_.end() ? kNullBlock : it->second;
}

void BlockPool::acquire(BlockId id) {
  LORATORY_ASSERT(blocks_[id].key != kNoKey, "only a published block can be shared");
  if (ref_counts_[id]++ == 0) {
    remove_cached(id);
    count_referenced();
  }
}

BlockId BlockPool::take_cached() {
  LORATORY_ASSERT(num_cached_free_ > 0, "allocate from an exhausted pool");
  const BlockId id = blocks_[kNullBlock].next;
  remove_cached(id);
  unpublish(id);
  return id;
}

void BlockPool::publish(BlockId id, BlockKey key, uint64_t uid) {
  if (dead_namespaces_.contains(uid)) return;
  Block& block = blocks_[id];
  if (block.key != kNoKey || !published_.try_emplace(key, id).second) return;
  block.key = key;
  block.uid = uid;
}

void BlockPool::unpublish(BlockId id) {
  Block& block = blocks_[id];
  published_.erase(block.key);
  block.key = kNoKey;
}

void BlockPool::release(std::span<const BlockId> blocks, std::span<const BlockKey> keys,
                        uint64_t uid) {
  if (keys.empty() && published_.empty()) {
    for (size_t i = blocks.size(); i-- > 0;) drop_reference(blocks[i], /*is_cached=*/false);
    return;
  }
  for (size_t i = blocks.size(); i-- > 0;) {
    release_one(blocks[i], i < keys.size() ? keys[i] : kNoKey, uid);
  }
}

// An own unpublished full block is published now if its key is free. If a cached-free block has
// the key, that one takes this block's place in the queue: else two requests that computed one
// prefix could leave a child behind without its parent.
void BlockPool::release_one(BlockId id, BlockKey key, uint64_t uid) {
  const Block& block = blocks_[id];
  if (block.key == kNoKey && key != kNoKey) {
    const BlockId twin = find(key);
    if (twin == kNullBlock) {
      publish(id, key, uid);
    } else if (ref_counts_[twin] == 0) {
      remove_cached(twin);
      push_cached(twin);
    }
  }
  drop_reference(id, block.key != kNoKey);
}

void BlockPool::drop_reference(BlockId id, bool is_cached) {
  LORATORY_ASSERT(ref_counts_[id] > 0, "release of a free block");
  if (--ref_counts_[id] > 0) return;
  --num_referenced_;
  if (is_cached) {
    push_cached(id);
  } else {
    plain_free_.insert(id);
  }
}

uint32_t BlockPool::evict_namespace(uint64_t uid) {
  if (uid == 0) return 0;
  dead_namespaces_.insert(uid);
  uint32_t num_freed = 0;
  for (BlockId id = 1; id < blocks_.size(); ++id) {
    Block& block = blocks_[id];
    if (block.key == kNoKey || block.uid != uid) continue;
    if (ref_counts_[id] == 0) {
      remove_cached(id);
      plain_free_.insert(id);
      ++num_freed;
    }
    unpublish(id);
  }
  return num_freed;
}

void BlockPool::push_cached(BlockId id) {
  const BlockId tail = blocks_[kNullBlock].prev;
  blocks_[id].prev = tail;
  blocks_[id].next = kNullBlock;
  blocks_[tail].next = id;
  blocks_[kNullBlock].prev = id;
  ++num_cached_free_;
}

void BlockPool::remove_cached(BlockId id) {
  Block& block = blocks_[id];
  blocks_[block.prev].next = block.next;
  blocks_[block.next].prev = block.prev;
  --num_cached_free_;
}

}  // namespace loratory::sim
