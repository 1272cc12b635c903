#pragma once

#include <algorithm>
#include <span>

#include "gpu/plan/lora_variant.hpp"

// The variants of 8-bit weights that have a kernel: fewer than variant_table.hpp has, and all of
// them aligned.

namespace loratory::gpu {

/// Beside wide x.
inline constexpr LoraVariant kQuantizedLinearVariants[] = {
    // rank_tiles, token_tiles, cluster, stages, aligned
    {1, 1, 8, 2, true},
};
inline constexpr LoraVariant kQuantizedShrinkVariants[] = {
    // rank_tiles, token_tiles, cluster, stages, aligned
    {1, 1, 8, 2, true},
    {1, 1, 4, 2, true},
    {1, 1, 2, 2, true},
    {2, 1, 8, 1, true},
    {2, 1, 8, 2, true},
    {2, 1, 4, 1, true},
    {4, 1, 8, 1, true},
    {4, 1, 4, 1, true},
    {4, 1, 2, 1, true},
    {1, 4, 8, 2, true},
    {2, 4, 8, 2, true},
    {2, 4, 8, 1, true},
    {4, 4, 8, 4, true},
    // rank_tiles, token_tiles, cluster, stages, aligned, launches, through_memory
    {1, 1, 8, 2, true, 1, true},
    {1, 1, 4, 2, true, 1, true},
    {2, 1, 8, 1, true, 1, true},
    {4, 1, 8, 1, true, 1, true},
    {2, 4, 8, 1, true, 1, true},
    // by wgmma
    {4, 8, 8, 5, true},
    {4, 8, 8, 3, true},
    {4, 8, 4, 3, true},
    {4, 8, 2, 5, true},
};
inline constexpr LoraVariant kQuantizedExpandVariants[] = {
    {1, 1, 1, 1, true},
    {4, 1, 1, 1, true},
    {2, 4, 1, 2, true},
    {4, 8, 1, 2, true},
    // rank_tiles, token_tiles, cluster, stages, aligned, launches, through_memory, warps
    {4, 1, 1, 1, true, 1, false, 4},
    {4, 1, 1, 2, true, 1, false, 4},
    {4, 1, 1, 4, true, 1, false, 4},
};

/// Those of eight warps also end with SwiGLU, beside wide x.
inline constexpr std::span<const LoraVariant> kQuantizedGatedVariants(kQuantizedExpandVariants, 4);
static_assert(std::ranges::all_of(kQuantizedGatedVariants,
                                  [](const LoraVariant& v) { return v.warps == 8; }));

/// In one launch. `op` is linear, shrink, expand or gated_expand.
constexpr std::span<const LoraVariant> quantized_variants(LoraOp op) {
  if (op == LoraOp::linear) return kQuantizedLinearVariants;
  if (op == LoraOp::shrink) return kQuantizedShrinkVariants;
  if (op == LoraOp::gated_expand) return kQuantizedGatedVariants;
  return kQuantizedExpandVariants;
}

/// Whether the variant has a kernel; in two launches, whether its shrink has one.
constexpr bool has_quantized_kernel(LoraOp op, LoraVariant variant) {
  if (variant.launches == 2 && op == LoraOp::linear) op = LoraOp::shrink, variant.launches = 1;
  const auto all = quantized_variants(op);
  return std::ranges::find(all, variant) != all.end();
}

}  // namespace loratory::gpu
