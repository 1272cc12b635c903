#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gpu/product/product_plan.hpp"
#include "gpu/product/product_shape.hpp"

// The own kernel for few tokens. A CTA computes up to 128 tokens of a tile of columns, over all of
// K: two warps stream W and x through a pipeline in shared memory by bulk copies, one or two
// warpgroups multiply. Tiles are narrow, so that each SM has one and all of them read at once. The
// CTAs of a cluster share loads: each fetches a part of the rows and sends them to all. CTAs side
// by side, with other columns, share x; CTAs with other tokens share W, so that an SM has half of
// x.

namespace loratory::gpu {

inline constexpr int kSkinnyColumns[] = {16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256};
inline constexpr int kSkinnyClusters[] = {1, 2, 4, 8};
inline constexpr int kSkinnyTokenCtas[] = {1, 2};
inline constexpr int kMostSkinnyCtas = 8;                // of a cluster
inline constexpr int kWgmmaRows = 64;                    // of one product
inline constexpr int kWgmmaTokens[] = {8, 32, 64, 128};  // the last: most of a CTA
inline constexpr int kPanelDepth = 64;                   // numbers of K in a row of 128 bytes
inline constexpr int kMaxSkinnyStages = 32;
inline constexpr int kSkinnySharedBytes = 226 * 1024;  // of a CTA; Hopper has 227 KB

/// Panels of 64 numbers of K in a stage. A stage costs about 170 cycles, whatever it holds, so
/// narrow tiles of few tokens take more of each row at a time. Beyond 40 KB there are too few
/// stages.
constexpr int skinny_panels(int columns, int tokens) {
  if (columns > kWgmmaRows) return 1;
  return columns + tokens <= 80 ? 4 : 2;
}

/// Whether tokens are the rows of products, 64 for each warpgroup; else columns of y are.
constexpr bool tokens_are_rows(int tokens) { return tokens > kWgmmaRows; }
constexpr int skinny_groups(int tokens) {
  return tokens_are_rows(tokens) ? tokens / kWgmmaRows : 1;
}
/// Products of 64 columns that a tile takes where columns are rows.
constexpr int skinny_blocks(int columns) { return (columns + kWgmmaRows - 1) / kWgmmaRows; }

/// Whether there is such a tile and cluster. Each CTA loads whole eights of W's rows.
bool has_skinny_kernel(const ProductChoice& choice);

/// What follows from the shape, M and the choice.
struct SkinnyLayout {
  int32_t panels = 0;               ///< of 64 numbers of K in a stage
  int32_t columns = 0, tokens = 0;  ///< of the kernel, and so of a CTA
  /// Of x in a stage: as many as there are tokens, in steps of 8 a CTA, but no more than `tokens`.
  int32_t x_rows = 0;
  int32_t stage_bytes = 0;
  int32_t num_stages = 0;
  int32_t num_steps = 0;          ///< stages that K fills
  int32_t num_token_groups = 0;   ///< blocks of `tokens` of a cluster
  int32_t num_column_groups = 0;  ///< tiles of a cluster, side by side

  /// With what the products read behind the last stage. 1024 to align.
  int32_t shared_bytes() const;
  int32_t num_threads() const { return 128 * skinny_groups(tokens) + 2 * 32; }
  /// Of a tile, by the threads that multiply.
  int32_t results_of_thread() const { return columns * tokens / (128 * skinny_groups(tokens)); }
  int32_t num_items() const { return num_token_groups * num_column_groups; }
  /// The SMs of `num_sms` that have no tile where a cluster has `num_ctas`.
  int32_t idle_sms(int32_t num_ctas, int num_sms) const {
    return std::max(0, num_sms - num_items() * num_ctas);
  }
};

/// Shared memory of a stage and the number of stages that fit in `shared_bytes`.
SkinnyLayout skinny_layout(const ProductShape& shape, int64_t num_tokens,
                           const ProductChoice& choice);

/// What the kernel is told.
struct SkinnyParams {
  void* y;
  const void* bias;  ///< null: none
  int64_t y_stride;  ///< in numbers
  int32_t num_tokens, y_columns;
  int32_t num_steps, num_items, num_token_groups, block_tokens;
  int32_t num_stages, num_asked_ahead, stage_bytes, x_rows;
  int32_t column_ctas, token_ctas;  ///< of a cluster
  bool is_gated;                    ///< SwiGLU of the halves of W's rows
  bool out_is_f32, in_pairs;        ///< two columns of y are one aligned word
};
SkinnyParams skinny_params(const ProductShape& shape, const ProductChoice& choice,
                           const SkinnyLayout& layout, const ProductTensors& tensors);

/// Whether the kernel of a choice can end with SwiGLU: tiles and halves of W in eights of rows, y
/// of 16 bits, no bias; fuses_silu(): and y in pairs.
bool may_fuse_silu(const ProductShape& shape, const ProductChoice& choice);
bool fuses_silu(const ProductShape& shape, const ProductChoice& choice,
                const ProductTensors& tensors);

/// The skinny choices worth timing for M tokens on a GPU of `num_sms`, what should be fastest
/// first.
std::vector<ProductChoice> skinny_choices(const ProductShape& shape, int64_t num_tokens,
                                          int num_sms);

}  // namespace loratory::gpu
