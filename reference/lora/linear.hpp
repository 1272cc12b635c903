#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "reference/numerics/numeric_mode.hpp"
#include "reference/numerics/tensor.hpp"

// LoRA on linear layers, fast: definition.hpp says the same as plain loops, bit for bit, and judges
// what is here. Letters: T tokens, K in-features, L = max_loras, S slices, R = rows of a
// slot's buffer for one slice (the largest rank), N_i columns of slice i, s(t) slot of token t,
// r(s,i) rank of slot s in slice i (0: the adapter has no such slice, or the slot is empty).
//
// Common to all functions here:
// Dtypes   f32, f16, bf16. x and A have one dtype, A and B have one dtype; y may have another.
// Covered  row t and the columns of slice i, where s(t) >= 0 and r(s(t), i) > 0. Nothing else is
//          ever read or written: not rows of base tokens, not columns of absent slices, not what
//          lies beyond the rank in A, B and h. There may be anything, NaN included.
// Errors   InputError naming the argument: an axis of wrong size, a dtype, a slot outside
//          [-1, L), a rank outside [0, R], a scaling that is not finite.
// Aliasing y and h must not overlap any input.
// Repeats  bitwise, for any number of OpenMP threads; row t depends on x[t], its slot's weights
//          and the layer alone. Thread-safe.

namespace loratory::reference {

struct ShrinkSlice {
  ConstTensorView a;               ///< [L, R, K]
  std::span<const int32_t> ranks;  ///< [L]
};

struct ShrinkArgs {
  ConstTensorView x;                ///< [T, K]
  std::span<const int32_t> slots;   ///< [T]
  std::vector<ShrinkSlice> slices;  ///< S
  TensorView h;                     ///< [S, T, R], any of the dtypes
};

/// h[i, t, j] = round_h( sum_c A_i[s(t), j, c] · x[t, c] ),  j < r(s(t), i).
///
/// Rounding  inputs exact in fp32; products and sums in fp32, c ascending; once to h's dtype.
/// Scaling   not here. h beyond the rank keeps what it holds.
/// Cost      O(T·S·R·K).
/// Source    statements [1.7], [1.8], [1.16]; vLLM add_shrink; Punica (arXiv 2310.18547).
void shrink(const ShrinkArgs& args);

struct ExpandSlice {
  ConstTensorView b;                ///< [L, N_i, R]
  std::span<const int32_t> ranks;   ///< [L]
  std::span<const float> scalings;  ///< [L]
};

struct ExpandArgs {
  ConstTensorView h;                ///< [S, T, R]
  std::span<const int32_t> slots;   ///< [T]
  std::vector<ExpandSlice> slices;  ///< S
  int64_t offset_start = 0;         ///< first column of slice 0
  bool add_inputs = true;           ///< false: y = delta, the old y is not read
  NumericMode mode{};
  TensorView y;  ///< [T, >= offset_start + sum N_i]; holds base on entry, y on return
};

/// d = scaling(s(t), i) · sum_{j < r(s(t), i)} h[i, t, j] · B_i[s(t), n, j]
/// y[t, o_i + n] = base + d,  o_i = offset_start + N_0 + ... + N_{i-1}.
///
/// Rounding  products and sums in fp32, j ascending; then
///   mode.h      split2: all hi terms, then all lo terms; cast_to_weight: h rounded to B's dtype;
///               fp32, store_as_x: h as the buffer has it
///   mode.scale  accumulator: one fp32 product at the end; folded_b: scaling · B rounded to B's
///               dtype (once, from the exact product) and no product at the end
///   mode.sum    one_round: fp32(base) + d rounded to y's dtype; two_round: d is first rounded to
///               y's dtype (to B's with cast_to_weight, as vLLM does).
/// Cost      O(T·S·R·N).
/// Source    statements [1.1]-[1.6], [1.13], [1.17]; vLLM add_expand.
void expand(const ExpandArgs& args);

/// One slice of a packed layer (q, k or v; gate or up), for all slots.
struct LoraSlice {
  ConstTensorView a;                    ///< [L, R, K]
  ConstTensorView b;                    ///< [L, N_i, R]
  std::span<const int32_t> ranks;       ///< [L]
  std::span<const float> scalings;      ///< [L]
  std::optional<ConstTensorView> bias;  ///< [L, N_i], y's dtype; vLLM's former lora_bias
};

struct LinearArgs {
  ConstTensorView x;               ///< [T, K]
  std::span<const int32_t> slots;  ///< [T]
  std::vector<LoraSlice> slices;   ///< S
  int64_t offset_start = 0;
  bool add_inputs = true;  ///< with a bias always true
  NumericMode mode{};
  TensorView y;  ///< [T, >= offset_start + sum N_i]; holds base on entry, y on return
};

/// expand(shrink(x)) through a buffer [S, T, R] of fp32, or of x's dtype with store_as_x. A bias
/// comes first: y = round_y(base + bias) on covered elements.
/// Source    statements [1.1], [1.9]; vLLM add_lora_linear.
void lora_linear(const LinearArgs& args);

/// LoRA of lm_head: the same arithmetic on one slice, where a row is a row of logits and
/// row_slots its slot (sampler_mapping.hpp), not a token. y [rows, V] is before soft-cap and
/// logit scale. On a vocabulary shard: B's rows and y's columns of that shard.
/// Source    statements [1.30]; vLLM add_lora_logits.
void lora_logits(const ConstTensorView& hidden, std::span<const int32_t> row_slots,
                 const LoraSlice& lm_head, const NumericMode& mode, const TensorView& logits);

struct EmbeddingArgs {
  std::span<const int64_t> token_ids;  ///< [T], each in [0, V), base tokens included
  std::span<const int32_t> slots;      ///< [T]
  LoraSlice slice;                     ///< a [L, R, V], b [L, H, R], no bias
  NumericMode mode{};
  TensorView y;  ///< [T, H]; holds W_e[id] on entry
};

/// y[t] = W_e[id] + scaling · A_e[:, id] B_e^T. No shrink: h is a column of A_e, exact.
/// Errors    also InputError: an id outside [0, V).
/// Source    statements [1.28], [1.29]; PEFT lora_embedding_A, lora_embedding_B.
void lora_embedding(const EmbeddingArgs& args);

}  // namespace loratory::reference
