#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace loratory::sim {

/// Identity of a full block inside one process: equal keys if and only if equal (parent, namespace,
/// content). Interned, never hashed away, so two different blocks can not collide.
using BlockKey = uint64_t;
inline constexpr BlockKey kNoKey = 0;

/// Hands out BlockKeys. Keys of interned blocks count up from 1; keys of blocks whose content is
/// known to nobody else (generated tokens of a replayed trace) have the top bit set.
class BlockKeyInterner {
 public:
  /// `block_id` identifies the tokens of the block; it equals no list of tokens.
  BlockKey key(BlockKey parent, uint64_t uid, uint64_t block_id);
  BlockKey key(BlockKey parent, uint64_t uid, std::span<const int32_t> tokens);
  /// The key of block `block_index` of the request with number `request_seq`, below 2^31: equal to
  /// no other.
  static BlockKey unique(uint64_t request_seq, uint32_t block_index) {
    return (BlockKey{1} << 63) | (request_seq << 32) | block_index;
  }

 private:
  enum class ContentKind : uint64_t { block_id, tokens };
  struct Node {
    BlockKey parent;
    uint64_t uid, content;
    ContentKind kind;
    bool operator==(const Node&) const = default;
  };
  struct NodeHash {
    size_t operator()(const Node& n) const;
  };
  struct TokensHash {
    size_t operator()(const std::vector<int32_t>& tokens) const;
  };
  BlockKey intern(const Node& node);
  std::unordered_map<Node, BlockKey, NodeHash> keys_;
  std::unordered_map<std::vector<int32_t>, uint64_t, TokensHash> token_lists_;
};

}  // namespace loratory::sim
