#include "scheduler_sim/prefix_cache/block_key.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace loratory::sim {

size_t BlockKeyInterner::NodeHash::operator()(const Node& n) const {
  return XXH3_64bits(&n, sizeof n);
}

size_t BlockKeyInterner::TokensHash::operator()(const std::vector<int32_t>& tokens) const {
  return XXH3_64bits(tokens.data(), tokens.size() * sizeof(int32_t));
}

BlockKey BlockKeyInterner::key(BlockKey parent, uint64_t uid, uint64_t block_id) {
  return intern({parent, uid, block_id, ContentKind::block_id});
}

BlockKey BlockKeyInterner::key(BlockKey parent, uint64_t uid, std::span<const int32_t> tokens) {
  const auto list = token_lists_.try_emplace({tokens.begin(), tokens.end()}, token_lists_.size());
  return intern({parent, uid, list.first->second, ContentKind::tokens});
}

BlockKey BlockKeyInterner::intern(const Node& node) {
  return keys_.try_emplace(node, keys_.size() + 1).first->second;
}

}  // namespace loratory::sim
