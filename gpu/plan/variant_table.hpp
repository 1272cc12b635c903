#pragma once

#include <algorithm>
#include <iterator>
#include <span>
#include <vector>

#include "gpu/plan/lora_variant.hpp"

// The variants that have a kernel. kernel_table.cuh compiles one from each row, so that a row here
// is all that a new kernel needs.

namespace loratory::gpu {

inline constexpr LoraVariant kLinearVariants[] = {
    // rank_tiles, token_tiles, cluster, stages, aligned
    {1, 1, 8, 2, true}, {1, 1, 2, 3, true},  {1, 1, 1, 2, true},
    {2, 1, 8, 2, true}, {2, 1, 8, 2, false}, {1, 1, 1, 2, false},
};

inline constexpr LoraVariant kShrinkVariants[] = {
    // rank_tiles, token_tiles, cluster, stages, aligned
    {1, 1, 8, 2, true},
    {1, 1, 4, 2, true},
    {1, 1, 2, 2, true},
    {2, 1, 4, 1, true},
    {2, 1, 2, 1, true},
    {2, 1, 8, 1, true},
    {2, 1, 8, 2, true},
    {4, 1, 8, 1, true},
    {1, 4, 8, 2, true},
    {2, 4, 8, 2, true},
    {2, 4, 8, 1, true},
    {4, 4, 8, 4, true},
    {2, 1, 8, 2, false},
    {1, 1, 1, 2, true},
    {1, 1, 1, 2, false},
    // rank_tiles, token_tiles, cluster, stages, aligned, launches, through_memory
    {1, 1, 8, 2, true, 1, true},
    {1, 1, 4, 2, true, 1, true},
    {2, 1, 8, 1, true, 1, true},
    {4, 1, 8, 1, true, 1, true},
    {2, 4, 8, 1, true, 1, true},
    // by wgmma
    {4, 8, 8, 3, true},
    {4, 8, 8, 4, true},
    {4, 8, 4, 3, true},
    {4, 8, 4, 4, true},
    {4, 8, 2, 4, true},
    {4, 8, 2, 3, true},
    {4, 8, 1, 4, true},
    {4, 8, 1, 3, true},
    {8, 8, 4, 3, true},
    {8, 8, 2, 3, true},
    {8, 8, 1, 3, true},
};

inline constexpr LoraVariant kExpandVariants[] = {
    // rank_tiles, token_tiles, cluster, stages, aligned
    {1, 1, 1, 1, true},
    {2, 1, 1, 1, true},
    {2, 1, 1, 2, true},
    {4, 1, 1, 1, true},
    {4, 1, 1, 2, true},
    {1, 4, 1, 2, true},
    {2, 4, 1, 2, true},
    {4, 4, 1, 1, true},
    {1, 8, 1, 2, true},
    {4, 8, 1, 2, true},
    {4, 8, 1, 3, true},
    {1, 1, 1, 3, false},
    // rank_tiles, token_tiles, cluster, stages, aligned, launches, through_memory, warps
    {2, 1, 1, 2, true, 1, false, 4},
    {4, 1, 1, 2, true, 1, false, 4},
    {1, 1, 1, 2, true, 1, false, 4},
    {4, 1, 1, 3, true, 1, false, 4},
    {4, 1, 1, 4, true, 1, false, 4},
};

/// Those of aligned tensors and eight warps, which come first, also end with SwiGLU.
constexpr bool may_be_gated(const LoraVariant& v) { return v.aligned && v.warps == 8; }
inline constexpr std::span<const LoraVariant> kGatedVariants(
    kExpandVariants, size_t(std::ranges::count_if(kExpandVariants, may_be_gated)));
static_assert(std::ranges::all_of(kGatedVariants, may_be_gated));

/// With the shrink of the next layer.
inline constexpr LoraVariant kGatedShrinkVariants[] = {{4, 8, 1, 2, true}};

/// All variants of an operation in one launch.
constexpr std::span<const LoraVariant> variants_of(LoraOp op) {
  if (op == LoraOp::shrink) return kShrinkVariants;
  if (op == LoraOp::gated_expand) return kGatedVariants;
  if (op == LoraOp::gated_expand_shrink) return kGatedShrinkVariants;
  return op == LoraOp::expand ? std::span<const LoraVariant>(kExpandVariants)
                              : std::span<const LoraVariant>(kLinearVariants);
}

/// Whether the variant has a kernel; in two launches, whether its shrink has one.
constexpr bool has_kernel(LoraOp op, LoraVariant variant) {
  if (variant.launches == 2 && op == LoraOp::linear) op = LoraOp::shrink, variant.launches = 1;
  return std::ranges::find(variants_of(op), variant) != variants_of(op).end();
}

/// Whether a GPU with these features can launch it.
constexpr bool can_launch(const LoraVariant& v, bool has_clusters, bool has_wgmma) {
  return (v.cluster == 1 || has_clusters) && (!v.needs_wgmma() || has_wgmma);
}

/// All variants of an operation that such a GPU can launch; of a linear in one launch or in two.
inline std::vector<LoraVariant> lora_variants(LoraOp op, bool has_clusters, bool has_wgmma) {
  std::vector<LoraVariant> out;
  std::ranges::copy_if(variants_of(op), std::back_inserter(out), [&](const LoraVariant& v) {
    return can_launch(v, has_clusters, has_wgmma);
  });
  if (op != LoraOp::linear) return out;
  for (LoraVariant v : lora_variants(LoraOp::shrink, has_clusters, has_wgmma)) {
    v.launches = 2;
    out.push_back(v);
  }
  return out;
}

}  // namespace loratory::gpu
