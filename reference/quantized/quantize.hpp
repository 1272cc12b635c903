#pragma once

#include <cstdint>
#include <span>

#include "reference/numerics/tensor.hpp"

namespace loratory::reference {

/// The factor of 8-bit numbers whose largest magnitude is `absmax`: max(absmax / largest, 2^-126),
/// 1 if absmax is 0. The floor keeps it from rounding to 0, where every quotient would be infinite.
float quantization_scale(float absmax, Dtype dtype);

struct QuantizeArgs {
  ConstTensorView v;                ///< [T, n], f32, f16 or bf16
  std::span<const int32_t> widths;  ///< [T] how many numbers of a row count; others are not read
  int64_t group_k = 0;              ///< > 0: of blocks
  TensorView bits;                  ///< [T, n], f8_e4m3fn, f8_e5m2 or i8
  TensorView scale;                 ///< f32: [] tensor, [T, 1] token, [T, ceil(n/group_k)] block
};

/// scale = quantization_scale(absmax); bits = nearest(v / scale).
///
/// absmax is of the finite numbers under one factor; largest is 448, 57344 or 127.
/// Rounding  both quotients in fp32; then to nearest even, saturating. absmax = 0: all bits are 0.
/// Not finite  infinity becomes the largest number, NaN stays NaN (0 in i8): it does not leave its
///           place.
/// Every factor is written, bits only inside the widths.
/// Errors    InputError naming the argument: a shape, a dtype, a width outside [0, n].
/// Repeats   bitwise. By tensor a factor depends on all rows, else on its own.
/// Source    statements [1.47], [1.50]; vLLM scaled_fp8_quant.
void quantize(const QuantizeArgs& args);

/// 8-bit numbers and what they are worth.
struct QuantizedMatrix {
  Tensor bits;   ///< [N, K]
  Tensor scale;  ///< [N], f32: one factor for each row
};

/// A weight matrix [N, K] by channel: quantize() of each of its rows.
/// Errors    InputError: a weight that is not finite.
/// Source    statements [1.50].
QuantizedMatrix quantize_channels(const ConstTensorView& weight, Dtype dtype);

}  // namespace loratory::reference
