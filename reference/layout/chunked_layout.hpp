#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/layout/batch_layout.hpp"

namespace loratory::reference {

/// Tokens sorted by slot and cut into segments of at most segment_size; the arrays of SGLang's
/// chunked SGMV backend. The base model owns a slot of rank 0 there, so slots are never -1.
///
/// x is never reordered: position i of a segment reads and writes row permutation[i] [2.22].
/// Source   statements [2.17]-[2.23]; SGLang, lora/backend/chunked_backend.py.
struct ChunkedLayout {
  std::vector<int32_t> permutation;     ///< [T] stable sort of the tokens by slot
  std::vector<int32_t> weight_indices;  ///< [num_segments] slot of the segment
  std::vector<int32_t> seg_indptr;      ///< [num_segments + 1] into permutation
  std::vector<int32_t> lora_ranks;      ///< [L]
  std::vector<float> scalings;          ///< [L]

  friend bool operator==(const ChunkedLayout&, const ChunkedLayout&) = default;
};

/// Writes every element whatever `layout` held before. Of each slot the full segments come first.
/// Errors   InputError: a slot outside [0, lora_ranks.size()), segment_size < 1, or ranks and
///          scalings of different lengths; as check_requests().
/// Cost     O(T log T).
void build(std::span<const RequestTokens> requests, int32_t segment_size,
           std::span<const int32_t> lora_ranks, std::span<const float> scalings,
           ChunkedLayout& layout);

/// The same requests with the base model in a slot of its own.
std::vector<RequestTokens> with_base_slot(std::span<const RequestTokens> requests,
                                          int32_t base_slot);

}  // namespace loratory::reference
