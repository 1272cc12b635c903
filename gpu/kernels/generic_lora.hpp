#pragma once

#include "gpu/kernels/lora_launch.hpp"

namespace loratory::gpu {

/// The operations for every dtype and mode that the tensor cores do not take, on CUDA cores.
///
/// x, h and y f32, bf16 or f16, in any mix with bf16 or f16 weights; every NumericMode; any strides
/// and alignment; any rank of 1..512. No operand is rounded before its product: an fp32 x keeps all
/// its bits.
/// Rounding  one fp32 product and one fp32 sum a term, not fused, k and j ascending from +0, then
///           the roundings of the mode: the bits of reference/lora/linear.hpp (payloads of NaN
///           apart), which says what each mode is.
/// Bound     so error_bound() of error_bound.hpp with unit 2^-24 (statement [1.18]): of K products
///           and K - 1 sums of h, a term of it passes K; of d, the product with B, up to r' - 1
///           sums and the product with the scaling, r' + 1. Weight is the dtype of A and B also
///           where x has another.
/// Repeats   bitwise: the order of a sum is that of its index, whatever CTA does it.
/// Covered   nothing else is read or written.
/// Cost      no workspace; a grid of fixed size. A small fraction of the tensor cores' speed.
/// Errors    std::runtime_error: CUDA's name and text.
void launch_generic_lora(const LoraLaunch& launch);

}  // namespace loratory::gpu
