#include "scheduler_sim/trace/reuse.hpp"

#include <algorithm>

#include "reference/base/check.hpp"

namespace loratory::sim {
namespace {

// Recency list over the dense indices 0..n-1, most recent first.
class LruBlocks {
 public:
  LruBlocks(size_t num_distinct, uint64_t capacity)
      : links_(num_distinct + 1), capacity_(capacity), head_(uint32_t(num_distinct)) {
    for (Link& link : links_) link = {kOut, kOut};
    links_[head_] = {head_, head_};
  }

  bool contains(uint32_t block) const { return links_[block].next != kOut; }

  void touch(uint32_t block) {
    if (contains(block)) {
      unlink(block);
    } else if (size_ == capacity_) {
      if (capacity_ == 0) return;
      unlink(links_[head_].previous);
    } else {
      ++size_;
    }
    links_[block] = {head_, links_[head_].next};
    links_[links_[head_].next].previous = block;
    links_[head_].next = block;
  }

 private:
  struct Link {
    uint32_t previous, next;
  };
  static constexpr uint32_t kOut = UINT32_MAX;

  void unlink(uint32_t block) {
    links_[links_[block].previous].next = links_[block].next;
    links_[links_[block].next].previous = links_[block].previous;
    links_[block] = {kOut, kOut};
  }

  std::vector<Link> links_;  // the last one is the head of the ring
  uint64_t capacity_;
  uint64_t size_ = 0;
  uint32_t head_;
};

// A block as the cache tells them apart: KV of one adapter is of no use to another.
struct Block {
  AdapterIndex adapter;
  uint64_t id;
  auto operator<=>(const Block&) const = default;
};

std::vector<Block> blocks_of(const Trace& trace) {
  std::vector<Block> blocks(trace.block_ids.size());
  for (const TraceRequest& request : trace.requests) {
    for (size_t i = 0; i < request.content_count; ++i) {
      const size_t at = request.content_begin + i;
      blocks[at] = {request.adapter, trace.block_ids[at]};
    }
  }
  return blocks;
}

// Every block of the trace replaced by its place among the distinct ones.
std::vector<uint32_t> dense_ids(const Trace& trace, size_t& num_distinct) {
  const std::vector<Block> blocks = blocks_of(trace);
  std::vector<Block> distinct = blocks;
  std::ranges::sort(distinct);
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  num_distinct = distinct.size();
  LORATORY_ASSERT(num_distinct < UINT32_MAX, "block indices fit 32 bits");
  std::vector<uint32_t> dense;
  dense.reserve(blocks.size());
  for (const Block& block : blocks) {
    dense.push_back(uint32_t(std::ranges::lower_bound(distinct, block) - distinct.begin()));
  }
  return dense;
}

PrefixReuse replay(const Trace& trace, std::span<const uint32_t> ids, size_t num_distinct,
                   uint64_t capacity) {
  PrefixReuse reuse;
  reuse.capacity_blocks = capacity;
  LruBlocks cache(num_distinct, capacity);
  for (const TraceRequest& request : trace.requests) {
    if (request.content_count == 0) continue;
    const auto blocks = ids.subspan(request.content_begin, request.content_count);
    const auto miss =
        std::ranges::find_if_not(blocks, [&](uint32_t block) { return cache.contains(block); });
    const auto hits = uint64_t(miss - blocks.begin());
    reuse.num_blocks += blocks.size();
    reuse.hit_blocks += hits;
    reuse.num_tokens += request.prompt_tokens;
    reuse.hit_tokens += std::min<uint64_t>(hits * trace.block_tokens, request.prompt_tokens);
    for (size_t i = blocks.size(); i-- > 0;) cache.touch(blocks[i]);
  }
  return reuse;
}

}  // namespace

std::vector<PrefixReuse> prefix_reuse(const Trace& trace, std::span<const uint64_t> capacities) {
  std::vector<PrefixReuse> curve;
  if (trace.block_tokens == 0) return curve;
  size_t num_distinct = 0;
  const std::vector<uint32_t> ids = dense_ids(trace, num_distinct);
  for (const uint64_t capacity : capacities) {
    curve.push_back(replay(trace, ids, num_distinct, capacity));
  }
  return curve;
}

}  // namespace loratory::sim
