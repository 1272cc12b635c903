#pragma once

#include <cstdint>

#include "gpu/plan/kernel_shape.hpp"
#include "gpu/plan/launch_order.hpp"
#include "reference/numerics/dtype.hpp"

struct CUstream_st;

// How attention is cut, and what the host passes to its kernels.

namespace loratory::gpu {

/// A row's context is cut into pieces, counted from position 0. Each is summed on its own, and the
/// sums are merged in the order of positions. Inside a piece, keys go in tiles.
inline constexpr int kPieceKeys = 256;
inline constexpr int kAttentionTileKeys = 64;
/// Prefill: pairs of a token and a head that one CTA computes, for one kv head.
inline constexpr int kPrefillRows = 128;
/// Decode: heads that may share a kv head.
inline constexpr int kMostGroup = 16;

LORATORY_HOST_DEVICE constexpr int32_t num_attention_pieces(int32_t context) {
  return (context + kPieceKeys - 1) / kPieceKeys;
}

/// Some rows of a row's chunk, which a CTA computes for each kv head.
struct PrefillTile {
  int32_t row;
  int32_t index;  ///< it has the pairs from index · kPrefillRows on
};

/// What build_work() finds and the kernels go through.
struct AttentionWork {
  int32_t* num_tiles;     ///< [1]
  int32_t* piece_starts;  ///< [max_rows + 1] pieces of decode rows before this one
  int32_t* tile_starts;   ///< [max_rows + 1] their tiles before this one
  int32_t* arrived;       ///< [max_rows, kv_heads] pieces whose sums are there; 0 between launches
  int32_t* late_taken;    ///< [1] late items that are taken; 0 between launches
  PrefillTile* tiles;     ///< longest first
  float* sums;            ///< [pieces · kv_heads, group, head_dim], of rows with several pieces
  float* stats;           ///< [pieces · kv_heads, group, 2] shift and sum of weights
};

/// Where it lies in the workspace, in bytes.
struct WorkspaceLayout {
  int64_t piece_starts = 0, tile_starts = 0, arrived = 0, late_taken = 0, tiles = 0, sums = 0,
          stats = 0;
  int64_t num_bytes = 0;
};

struct AttentionParams {
  const void* q = nullptr;
  void* out = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  int64_t q_stride = 0, out_stride = 0;  ///< of a token, in elements
  const int32_t* token_rows = nullptr;
  const int32_t* row_starts = nullptr;
  const int32_t* contexts = nullptr;
  const int32_t* block_tables = nullptr;
  int32_t max_blocks = 0;
  int64_t num_blocks = 0;                   ///< of k and v
  int32_t block_size = 0, block_shift = 0;  ///< 2^shift = size, on the tensor_core path
  int32_t num_tokens = 0, num_rows = 0;
  int32_t kv_heads = 0, group = 0, head_dim = 0;
  float scale = 0, scale_log2 = 0;  ///< the second times log2(e)
  bool overlaps_previous = false;   ///< the previous kernel may still run
  AttentionWork work{};
};

inline LaunchOrder order_of(const AttentionParams& params) {
  return params.overlaps_previous ? LaunchOrder::overlaps_previous : LaunchOrder::after_previous;
}

/// Tiles that `num_tokens` tokens of at most `num_rows` rows can have.
constexpr int64_t max_prefill_tiles(int64_t num_tokens, int64_t num_rows, int32_t group) {
  // A row with a tile has two tokens or more.
  const int64_t rows = num_rows < num_tokens / 2 ? num_rows : num_tokens / 2;
  return num_tokens * group / kPrefillRows + rows;
}

/// Kernels of one launch. Errors: std::runtime_error from CUDA, or because there is no CUDA.
struct AttentionLaunch {
  reference::Dtype dtype;
  AttentionParams params;
  CUstream_st* stream;
};
void launch_attention_work(const AttentionLaunch& launch);
void launch_decode_attention(const AttentionLaunch& launch);
void launch_prefill_attention(const AttentionLaunch& launch);
void launch_plain_attention(const AttentionLaunch& launch);

}  // namespace loratory::gpu
