#include "gpu/kernels/lora_linear.hpp"

namespace loratory::gpu {

LoraVariant choose_variant(int64_t num_tokens, int64_t max_rank, bool aligned) {
  if (!aligned) return {.rank_tiles = 2, .token_tiles = 1, .cluster = 8, .aligned = false};
  constexpr int64_t kDecodeTokens = 256;  // beyond: more tokens than a segment of 8 is good for
  if (num_tokens > kDecodeTokens) return {1, 4, 8, true};
  return {.rank_tiles = max_rank <= 16 ? 1 : 2, .token_tiles = 1, .cluster = 8, .aligned = true};
}

std::string describe(const LoraVariant& v) {
  return "r" + std::to_string(16 * v.rank_tiles) + " t" + std::to_string(v.segment_size()) + " c" +
         std::to_string(v.cluster) + (v.aligned ? "" : " unaligned");
}

}  // namespace loratory::gpu
