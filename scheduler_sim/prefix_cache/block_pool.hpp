#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "reference/base/check.hpp"
#include "scheduler_sim/prefix_cache/block_key.hpp"

namespace loratory::sim {

/// Index of a KV block. Block 0 is the null block: never allocated, never cached.
using BlockId = uint32_t;
inline constexpr BlockId kNullBlock = 0;

/// Set of block ids that yields its lowest member, most often with one look at one word.
class LowestFirstSet {
 public:
  explicit LowestFirstSet(uint32_t capacity);
  void insert(BlockId id) {
    ++size_;
    uint64_t& word = levels_.front()[id / 64];
    if (word == 0) enter_word(id);
    word |= uint64_t{1} << (id % 64);
  }
  /// Precondition: not empty.
  BlockId pop_lowest() {
    LORATORY_ASSERT(size_ > 0, "pop from an empty set");
    --size_;
    uint64_t& word = levels_.front()[lowest_word_];
    const auto id = BlockId(lowest_word_ * 64 + size_t(std::countr_zero(word)));
    word &= word - 1;
    if (word == 0) leave_word();
    return id;
  }
  uint32_t size() const { return size_; }

 private:
  void enter_word(BlockId id);
  void leave_word();

  size_t lowest_word_ = SIZE_MAX;              // of levels_[0] that is not empty; none: SIZE_MAX
  std::vector<std::vector<uint64_t>> levels_;  // levels_[k+1] has one bit per non-zero word of [k]
  uint32_t size_ = 0;
};

/// KV blocks and the prefix cache over them (hash chain; statements [6.1]-[6.24] of
/// docs/scheduler.md).
///
/// A block is in exactly one class: plain free, cached free (published, nobody uses it), or
/// referenced (in the table of a live request). plain + cached + referenced + 1 (null) = total.
/// Plain free blocks are handed out first, lowest index first, then the head of the cached-free
/// queue, which thereby stops being matchable. Requests free their tables tail first, so in one
/// chain suffix blocks are evicted before their prefix.
/// Cost: O(1) per block and call (hash map access for published ones).
class BlockPool {
 public:
  /// `num_blocks` includes the null block.
  explicit BlockPool(uint32_t num_blocks);

  uint32_t num_referenced() const { return num_referenced_; }
  uint32_t most_referenced() const { return most_referenced_; }  ///< at one time so far
  uint32_t num_allocatable() const { return plain_free_.size() + num_cached_free_; }
  uint32_t ref_count(BlockId id) const { return ref_counts_[id]; }

  /// The published block with this key, kNullBlock if none. Changes nothing.
  BlockId find(BlockKey key) const;
  /// Adds a reference to a published block (a prefix hit).
  void acquire(BlockId id);
  /// A block nobody else references. Precondition: num_allocatable() > 0.
  BlockId allocate() {
    const BlockId id = plain_free_.size() > 0 ? plain_free_.pop_lowest() : take_cached();
    ref_counts_[id] = 1;
    count_referenced();
    return id;
  }
  /// Makes a referenced block matchable; no effect if another block has the key already, or if the
  /// namespace was evicted.
  void publish(BlockId id, BlockKey key, uint64_t uid);
  /// Gives a table back, tail first. `keys[i]` names the i-th block if all its tokens have KV, and
  /// kNoKey otherwise; keys.size() <= blocks.size(), missing ones are kNoKey.
  void release(std::span<const BlockId> blocks, std::span<const BlockKey> keys, uint64_t uid);
  /// Frees every unreferenced block of the namespace now, makes the others unmatchable; they go
  /// plain free with their last reference. Later publishing under `uid` has no effect. uid 0 and
  /// unknown uids: nothing happens. Returns the number of blocks freed.
  uint32_t evict_namespace(uint64_t uid);
  /// The uid can not publish any more (its unload completed): forget that its namespace is dead.
  void forget_namespace(uint64_t uid) { dead_namespaces_.erase(uid); }

 private:
  struct Block {
    BlockKey key = kNoKey;  // published under this key
    uint64_t uid = 0;
    BlockId prev = kNullBlock, next = kNullBlock;  // cached-free queue
  };

  void count_referenced() { most_referenced_ = std::max(most_referenced_, ++num_referenced_); }
  BlockId take_cached();
  void drop_reference(BlockId id, bool is_cached);
  void push_cached(BlockId id);
  void remove_cached(BlockId id);
  void unpublish(BlockId id);
  void release_one(BlockId id, BlockKey key, uint64_t uid);

  std::vector<uint32_t> ref_counts_;  // apart from blocks_: without a prefix cache all that is used
  std::vector<Block> blocks_;         // blocks_[0] is the sentinel of the cached-free queue
  LowestFirstSet plain_free_;
  std::unordered_map<BlockKey, BlockId> published_;
  std::unordered_set<uint64_t> dead_namespaces_;
  uint32_t num_cached_free_ = 0;
  uint32_t num_referenced_ = 0, most_referenced_ = 0;
};

}  // namespace loratory::sim
