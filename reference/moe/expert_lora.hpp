#pragma once

#include <span>
#include <vector>

#include "reference/lora/linear.hpp"
#include "reference/moe/expert_rows.hpp"

// LoRA on the linear layers of experts. Letters as in expert_rows.hpp and lora/linear.hpp; s and e
// are the slot and the local expert of a row.
//
// Covered  a row whose slot is >= 0 and enabled, whose expert is here, in the columns of slices
//          with rank(s, e) > 0. Nothing else is read or written; as in lora/linear.hpp.
// x        as the model has it, not quantised, whatever the base experts multiply: a kernel that
//          takes the fp8 numbers without their scales computes another delta.
// Tiles    which rows are computed together, single_row_tiles() or block_tiles(); the bits are the
//          same. A tile of a slot that is off changes nothing.
// Errors   InputError naming the argument; as in lora/linear.hpp, check_rows, check_adapters, and
//          a tile with a slot, expert or row that does not exist.
// Repeats  bitwise; a row depends on its x, its slot's weights at its expert and the layer alone.

namespace loratory::reference {

/// One slice of the experts' first layer (gate, up), or the second layer, for all slots.
struct ExpertLoraSlice {
  ConstTensorView a;                ///< [L, E, R, K]
  ConstTensorView b;                ///< [L, E, N_i, R]
  std::span<const int32_t> ranks;   ///< [L, E]; 0: the adapter leaves this expert alone
  std::span<const float> scalings;  ///< [L, E]
};

struct ExpertShrinkArgs {
  ConstTensorView x;  ///< [T, K], or [T·k, K] where rows differ already (the second layer)
  ExpertRows rows;
  TokenAdapters adapters;
  std::vector<ExpertLoraSlice> slices;  ///< b and scalings are not looked at
  TensorView h;                         ///< [S, T·k, R], any of the dtypes
};

/// h[i, row, j] = round_h( sum_c A_i[s, e, j, c] · x[row, c] ),  j < rank.
/// Source   statements [1.33], [1.34]; vLLM fused_moe_lora, first kernel.
void expert_shrink(const ExpertShrinkArgs& args, const std::vector<ExpertTile>& tiles);

struct ExpertExpandArgs {
  ConstTensorView h;  ///< [S, T·k, R]
  ExpertRows rows;
  TokenAdapters adapters;
  std::vector<ExpertLoraSlice> slices;    ///< a is not looked at
  std::span<const float> router_weights;  ///< [T·k], or empty: delta is not weighted
  int64_t offset_start = 0;               ///< first column of slice 0
  NumericMode mode{};
  TensorView y;  ///< [T·k, >= offset_start + sum N_i]; holds base on entry, y on return
};

/// d = router_weight · (scaling · sum_{j < rank} h[i, row, j] · B_i[s, e, n, j])
/// y[row, o_i + n] = base + d.
///
/// Rounding as expand() of lora/linear.hpp; the router weight is one more fp32 product, after
///          scaling and before d is rounded.
/// Source   statements [1.33], [1.34]; vLLM fused_moe_lora, second kernel (MUL_ROUTED_WEIGHT).
void expert_expand(const ExpertExpandArgs& args, const std::vector<ExpertTile>& tiles);

struct ExpertLoraArgs {
  ConstTensorView x;  ///< as in ExpertShrinkArgs
  ExpertRows rows;
  TokenAdapters adapters;
  std::vector<ExpertLoraSlice> slices;
  std::span<const float> router_weights;  ///< [T·k], or empty
  NumericMode mode{};
  TensorView y;  ///< [T·k, sum N_i]
};

/// expert_expand(expert_shrink(x)) through a buffer [S, T·k, R] of fp32, or of x's dtype with
/// store_as_x (vLLM's MoE kernels keep h so).
void expert_lora(const ExpertLoraArgs& args, const std::vector<ExpertTile>& tiles);

/// h of all rows, zeros where nothing is written: what expert_lora() puts between its halves.
Tensor expert_h_buffer(const ConstTensorView& x, const ExpertRows& rows,
                       const std::vector<ExpertLoraSlice>& slices, const NumericMode& mode);

}  // namespace loratory::reference
