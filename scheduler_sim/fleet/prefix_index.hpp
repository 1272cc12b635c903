#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "scheduler_sim/prefix_cache/block_key.hpp"
#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

/// What a router believes of the replicas' prefix caches: the prompts that it
/// sent to each, as blocks, in one LRU list a replica. Source: Gateway API
/// inference extension v1.4.0, scorer/prefix/indexer.go and plugin.go.
class PrefixIndex {
 public:
  /// Blocks of a prompt beyond this many are not looked at
  /// (DefaultMaxPrefixBlocks).
  static constexpr size_t kMaxBlocks = 256;

  /// `capacity` blocks are remembered for each replica, those that were sent
  /// last.
  PrefixIndex(int32_t num_replicas, size_t capacity);

  /// counts[r] = how many of the blocks replica r has, looked up in order until
  /// nobody has one. A hole does not end the count of a replica, as in
  /// matchLongestPrefix.
  void match(std::span<const BlockKey> keys, std::vector<int32_t>& counts) const;
  /// The prompt was sent to the replica.
  void add(std::span<const BlockKey> keys, int32_t replica);

 private:
  using Lru = std::list<BlockKey>;  // the one that leaves next in front
  struct Memory {
    Lru lru;
    std::unordered_map<BlockKey, Lru::iterator> places;
  };
  void set_holder(BlockKey key, int32_t replica, bool holds);

  size_t capacity_;
  size_t num_words_;               // of the set of replicas that hold a block
  std::vector<uint64_t> holders_;  // by key, num_words_ each: keys count up from 1
  std::vector<Memory> memories_;   // by replica
};

/// The blocks of prompts as a router tells them apart: by what is in them, what
/// is before them and the adapter that is asked for. Only full blocks, and none
/// of a prompt whose content is unknown.
class PromptBlocks {
 public:
  PromptBlocks(const Trace& trace, uint32_t block_size) : trace_(trace), block_size_(block_size) {}
  /// Valid until the next call.
  std::span<const BlockKey> of(const TraceRequest& request);

 private:
  const Trace& trace_;
  uint32_t block_size_;
  BlockKeyInterner interner_;
  std::vector<BlockKey> keys_;
};

}  // namespace loratory::sim
