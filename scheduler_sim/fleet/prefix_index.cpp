#include "scheduler_sim/fleet/prefix_index.hpp"

#include <algorithm>
#include <bit>

namespace loratory::sim {

PrefixIndex::PrefixIndex(int32_t num_replicas, size_t capacity)
    : capacity_(capacity),
      num_words_((size_t(num_replicas) + 63) / 64),
      memories_(size_t(num_replicas)) {}

void PrefixIndex::match(std::span<const BlockKey> keys, std::vector<int32_t>& counts) const {
  counts.assign(memories_.size(), 0);
  for (const BlockKey key : keys) {
    if ((key + 1) * num_words_ > holders_.size()) return;  // nobody was ever sent it
    bool is_held = false;
    for (size_t word = 0; word < num_words_; ++word) {
      uint64_t replicas = holders_[key * num_words_ + word];
      is_held |= replicas != 0;
      for (; replicas != 0; replicas &= replicas - 1) {
        ++counts[word * 64 + size_t(std::countr_zero(replicas))];
      }
    }
    if (!is_held) return;
  }
}

void PrefixIndex::add(std::span<const BlockKey> keys, int32_t replica) {
  Memory& memory = memories_[size_t(replica)];
  for (const BlockKey key : keys) {
    const auto [place, is_new] = memory.places.try_emplace(key);
    if (!is_new) {
      memory.lru.splice(memory.lru.end(), memory.lru, place->second);
      continue;
    }
    place->second = memory.lru.insert(memory.lru.end(), key);
    set_holder(key, replica, true);
    if (memory.lru.size() <= capacity_) continue;
    set_holder(memory.lru.front(), replica, false);
    memory.places.erase(memory.lru.front());
    memory.lru.pop_front();
  }
}

void PrefixIndex::set_holder(BlockKey key, int32_t replica, bool holds) {
  const size_t word = key * num_words_ + size_t(replica) / 64;
  if (word >= holders_.size()) holders_.resize((key + 1) * num_words_ * 2, 0);
  const uint64_t bit = uint64_t{1} << (replica % 64);
  holders_[word] = holds ? holders_[word] | bit : holders_[word] & ~bit;
}

std::span<const BlockKey> PromptBlocks::of(const TraceRequest& request) {
  const uint64_t uid = request.adapter == kBaseModel ? 0 : uint64_t{request.adapter} + 1;
  const auto tokens = trace_.tokens_of(request);
  const auto ids = trace_.blocks_of(request);
  const size_t known_tokens =
      std::min<size_t>(request.prompt_tokens, tokens.size() + ids.size() * trace_.block_tokens);
  const size_t num_blocks = std::min(known_tokens / block_size_, PrefixIndex::kMaxBlocks);
  keys_.clear();
  BlockKey parent = kNoKey;
  for (size_t i = 0; i < num_blocks; ++i) {
    const size_t first = i * block_size_;
    parent = tokens.empty() ? interner_.key(parent, uid, ids[first / trace_.block_tokens])
                            : interner_.key(parent, uid, tokens.subspan(first, block_size_));
    keys_.push_back(parent);
  }
  return keys_;
}

}  // namespace loratory::sim
