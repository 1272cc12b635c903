#pragma once

#include <optional>
#include <span>
#include <vector>

#include "reference/moe/activation.hpp"
#include "reference/moe/expert_lora.hpp"
#include "reference/moe/weight_layout.hpp"

// One mixture-of-experts layer, with or without LoRA, after the router has chosen. Letters as in
// expert_rows.hpp; H hidden, I the experts' inner size, S = 2 slices (gate, up), or 1 if the layer
// is not gated.
//
// For row (t, i) with expert e and router weight g_i:
//   u = W1[e] x + dW1,  v = W3[e] x + dW3     deltas before the activation, unweighted
//   a = act(u) · v      (act(u) if not gated)
//   z_i = W2[e] a + dW2
//   y = sum_i g_i · z_i                       base and delta weighted once
// router_weight_on_input (k = 1): x' = g · x for base and LoRA alike, and y = z.
//
// Rounding  products and sums in fp32, indices ascending; u, v, a, z once to `intermediate` after
//           the base product and once after delta; y once; x' once to x's dtype.
// No LoRA   the same bits as a batch in which no row is covered.
// Source    statements [1.33]-[1.37]; vLLM fused_experts and its LoRA variant; transformers.

namespace loratory::reference {

struct MoeLora {
  TokenAdapters adapters;
  /// S: gate, up; K = H, N = I. Of a gated layer also one for both (3-D adapters, vLLM's
  /// FusedMoE3DWithLoRA): gate and up share A, and N = 2I rows of B lie as `fused_rows` says.
  std::vector<ExpertLoraSlice> w13;
  ExpertLoraSlice w2;  ///< K = I, N = H
  NumericMode mode{};
  GateUpLayout fused_rows = GateUpLayout::halves;
};

/// w13 of `lora` with gate and up apart, views of the same weights: delta keeps its bits [1.25].
std::vector<ExpertLoraSlice> gate_and_up(const MoeLora& lora, bool gated);

struct MoeArgs {
  ConstTensorView x;  ///< [T, H]
  ExpertRows rows;
  std::span<const float> router_weights;  ///< [T·k]
  ConstTensorView w13;                    ///< [E, S·I, H], the rows of gate, then those of up
  ConstTensorView w2;                     ///< [E, H, I]
  bool gated = true;
  Activation activation = Activation::silu;
  bool router_weight_on_input = false;
  /// What the base experts multiply: x and a quantised row by row, as vLLM does for fp8 experts.
  /// LoRA takes x and a themselves.
  std::optional<Dtype> quantised_base_input;
  Dtype intermediate = Dtype::f32;  ///< of u, v, a, z
  Dtype out = Dtype::f32;           ///< of y
};

/// Numbers as the base experts multiply them: number [row, c] stands for
/// numbers[row, c] · scales[row].
struct BaseInput {
  Tensor numbers;             ///< f32; of an fp8 dtype if quantised
  std::vector<float> scales;  ///< 1 if not quantised
};

/// scale = max|x| / largest_finite (1 for a row of zeros), number = round(x / scale), saturating.
/// Source   vLLM, dynamic per-token fp8 activations.
BaseInput base_input(const ConstTensorView& x, std::optional<Dtype> quantised);

/// W_e · x of every row, times its scale. Rows of experts elsewhere stay 0 here and below.
/// `weights` [E, N, K]; x by token or by row, as in ExpertShrinkArgs.   -> [T·k, N]
Tensor expert_linear(const ExpertRows& rows, const BaseInput& x, const ConstTensorView& weights,
                     Dtype out);

/// gate_up [T·k, S·I] -> a [T·k, I]
Tensor activate_rows(const ConstTensorView& gate_up, const MoeArgs& args);

/// z [T·k, H] -> y [T, H]: sums over the experts that are here; without weights if they went on
/// the input.
Tensor combine_experts(const ConstTensorView& z, const MoeArgs& args);

/// x, or g · x with router_weight_on_input.
Tensor moe_input(const MoeArgs& args);

/// Everything that a kernel writes on the way; each stage can be judged given the one before it.
struct MoeStages {
  Tensor input;         ///< [T, H] x or x'
  Tensor gate_up_base;  ///< [T·k, S·I] before delta
  Tensor gate_up;       ///< [T·k, S·I]
  Tensor activated;     ///< [T·k, I]
  Tensor down_base;     ///< [T·k, H]
  Tensor down;          ///< [T·k, H] z
  Tensor y;             ///< [T, H]
};

/// Errors   InputError naming the argument: shapes, dtypes, check_rows, those of expert_lora();
///          router_weight_on_input with k > 1; gpt_oss without gate.
void check_moe(const MoeArgs& args);
/// Likewise: slots, and weights that do not fit the layer; a fused w13 in a layer without a gate.
void check_moe_lora(const MoeArgs& args, const MoeLora& lora);

/// `lora` null: the base layer. `aligned` null: row by row; else through the blocks of these
/// arrays. The bits are the same.
MoeStages moe_layer(const MoeArgs& args, const MoeLora* lora, const AlignedRows* aligned = nullptr);

}  // namespace loratory::reference
