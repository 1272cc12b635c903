#include "gpu/kernels/lora_linear.hpp"

namespace loratory::gpu {

LoraVariant choose_variant(int64_t num_tokens, int64_t max_rank, bool aligned) {
  if (!aligned) return {.rank_tiles = 2, .token_tiles = 1, .cluster = 8, .aligned = false};
  constexpr int64_t kDecodeTokens = 256;  // beyond: more tokens than a segment of 8 is good for
  if (num_tokens > kDecodeTokens) {
    const int cluster = num_tokens > 1024 ? 1 : 8;
    return {.rank_tiles = max_rank <= 16 ? 1 : 2,
            .token_tiles = 4,
            .cluster = cluster,
            .aligned = true};
  }
  if (max_rank > 16) return {.rank_tiles = 4, .token_tiles = 1, .cluster = 8, .aligned = true};
  return {.rank_tiles = 1, .token_tiles = 1, .cluster = num_tokens > 8 ? 2 : 8, .aligned = true};
}

}  // namespace loratory::gpu
