#include "scheduler_sim/prefix_cache/block_key.hpp"

#include <openssl/sha.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>

namespace loratory::sim {
namespace {

template <typename Int>
void append_le(std::vector<uint8_t>& out, Int value) {
  auto bits = static_cast<std::make_unsigned_t<Int>>(value);
  for (size_t i = 0; i < sizeof(Int);
       ++i, bits = static_cast<decltype(bits)>(uint64_t(bits) >> 8)) {
    out.push_back(uint8_t(bits & 0xff));
  }
}

}  // namespace

std::vector<uint8_t> block_key_bytes(const BlockDigest* parent, uint64_t uid,
                                     std::span<const KeyExtra> extras,
                                     std::span<const int32_t> tokens) {
  std::vector<uint8_t> out{'L', 'K', 'V', '1'};
  out.push_back(parent != nullptr);
  if (parent != nullptr) out.insert(out.end(), parent->begin(), parent->end());
  out.push_back(uid != 0);
  if (uid != 0) append_le(out, uid);
  append_le(out, uint32_t(extras.size()));
  for (const KeyExtra& extra : extras) {
    append_le(out, extra.tag);
    append_le(out, uint32_t(extra.bytes.size()));
    out.insert(out.end(), extra.bytes.begin(), extra.bytes.end());
  }
  append_le(out, uint32_t(tokens.size()));
  for (const int32_t token : tokens) append_le(out, token);
  return out;
}

BlockDigest block_digest(const BlockDigest* parent, uint64_t uid, std::span<const KeyExtra> extras,
                         std::span<const int32_t> tokens) {
  const std::vector<uint8_t> bytes = block_key_bytes(parent, uid, extras, tokens);
  BlockDigest digest;
  SHA256(bytes.data(), bytes.size(), digest.data());
  return digest;
}

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
