#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "reference/numerics/numeric_mode.hpp"
#include "reference/numerics/tensor.hpp"

// LoRA on linear layers with 8-bit weights. Letters, covered elements, aliasing, repeatability and
// threads as in lora/linear.hpp.
//
// Numbers   An 8-bit tensor (f8_e4m3fn, f8_e5m2, i8) has a scale: fp32 factors, and a number is
//           bits · factor [1.43]. x_scale and h_scale are what vLLM calls a_scale; a_scale and
//           b_scale, those of A and B, its b_scale.
// Modes     w8a16: x or h is f32, f16 or bf16 and has no scale. w8a8: x or h is 8-bit as well, fp8
//           with fp8 weights (the two formats may differ), i8 with i8.
// Weights   one factor for     A                             B
//           tensor: a slot     [L]                           [L]
//           channel: a row     [L, R]                        [L, N_i]
//           block: n x k       [L, ceil(R/n), ceil(K/k)]     [L, ceil(N_i/n), ceil(R/k)]
// x, h      tensor: a slice    x_scale []                    h_scale [S]
//           token: a row       x_scale [T, 1]                h_scale [S, T, 1]
//           block: k of a row  x_scale [T, ceil(K/k)]        h_scale [S, T, ceil(R/k)]
// Pairs     weights by tensor or channel with x, h by tensor or token; block with block. A factor
//           for each token has its axis of one: a scale of another shape is an error, it is never
//           read with stride 0.
// Errors    InputError naming the argument; besides those of lora/linear.hpp: a pair or a shape
//           that is not above, block sizes that are not both 0 or both positive, a scale too much
//           or missing.
// Not read  factors of uncovered rows and of groups that begin beyond the rank.

namespace loratory::reference {

/// Rows (n) and columns (k) of a weight under one factor; {0, 0}: by tensor, channel or token.
struct BlockSize {
  int64_t n = 0;
  int64_t k = 0;
};

struct QuantizedShrinkSlice {
  ConstTensorView a;               ///< [L, R, K], 8-bit
  ConstTensorView a_scale;         ///< of A, see above
  std::span<const int32_t> ranks;  ///< [L]
};

struct QuantizedShrinkArgs {
  ConstTensorView x;                       ///< [T, K]
  std::optional<ConstTensorView> x_scale;  ///< if x is 8-bit
  std::span<const int32_t> slots;          ///< [T]
  std::vector<QuantizedShrinkSlice> slices;
  BlockSize block;
  TensorView h;  ///< [S, T, R], f32, f16 or bf16
};

/// h[i, t, j] = round_h( sum_c A_i[s(t), j, c] · x[t, c] ),  j < r(s(t), i), of dequantised
/// numbers.
///
/// Rounding  tensor, channel: p = sum of bits · bits in fp32, c ascending; (p · factor of x) ·
///           factor of A. block: from 0, for each group g of k columns ascending, acc = acc +
///           ((p_g · factor of x) · factor of A). Everything fp32; without the product with a
///           factor of x in w8a16. i8 with i8: p is the exact integer, rounded to fp32. Once to h's
///           dtype.
/// Scaling   not here: dequantisation only.
/// Cost      O(T·S·R·K).
/// Source    statements [1.42]-[1.48]; vLLM lora_shrink_fp8.
void shrink_quantized(const QuantizedShrinkArgs& args);

struct QuantizedExpandSlice {
  ConstTensorView b;                ///< [L, N_i, R], 8-bit
  ConstTensorView b_scale;          ///< of B, see above
  std::span<const int32_t> ranks;   ///< [L]
  std::span<const float> scalings;  ///< [L]
};

struct QuantizedExpandArgs {
  ConstTensorView h;                       ///< [S, T, R]
  std::optional<ConstTensorView> h_scale;  ///< if h is 8-bit; slices have their own
  std::span<const int32_t> slots;          ///< [T]
  std::vector<QuantizedExpandSlice> slices;
  BlockSize block;
  int64_t offset_start = 0;  ///< first column of slice 0
  bool add_inputs = true;    ///< false: y = delta, the old y is not read
  SumMode sum = SumMode::one_round;
  TensorView y;  ///< [T, >= offset_start + sum N_i]; holds base on entry, y on return
};

/// d = scaling(s(t), i) · sum_{j < r(s(t), i)} h[i, t, j] · B_i[s(t), n, j], y[t, o_i + n] = base +
/// d, as expand() with dequantised numbers.
///
/// Rounding  the sum as in shrink_quantized, j in place of c; one fp32 product with scaling; then
///           sum: one_round or two_round, by way of y's dtype.
/// Cost      O(T·S·R·N).
/// Source    statements [1.42]-[1.48], [1.13]; vLLM lora_expand_fp8.
void expand_quantized(const QuantizedExpandArgs& args);

/// One slice of a packed layer, for all slots.
struct QuantizedSlice {
  ConstTensorView a, a_scale;       ///< [L, R, K]
  ConstTensorView b, b_scale;       ///< [L, N_i, R]
  std::span<const int32_t> ranks;   ///< [L]
  std::span<const float> scalings;  ///< [L]
};

struct QuantizedLinearArgs {
  ConstTensorView x;                       ///< [T, K]
  std::optional<ConstTensorView> x_scale;  ///< if x is 8-bit
  std::span<const int32_t> slots;          ///< [T]
  std::vector<QuantizedSlice> slices;
  BlockSize a_block, b_block;
  int64_t offset_start = 0;
  bool add_inputs = true;
  SumMode sum = SumMode::one_round;
  TensorView y;  ///< [T, >= offset_start + sum N_i]; holds base on entry, y on return
};

/// shrink_quantized into an fp32 buffer; if x is 8-bit, quantize (quantize.hpp) to its dtype, by
/// block if B has blocks, else as x is: by tensor or by token; expand_quantized.
///
/// By tensor, h_scale is the largest of all covered tokens: a row depends on the batch then, alone
/// among the functions of this library. By token and by block it does not.
void lora_linear_quantized(const QuantizedLinearArgs& args);

}  // namespace loratory::reference
