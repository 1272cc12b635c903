#pragma once

#include "gpu/plan/lora_launch.hpp"

namespace loratory::gpu {

/// The operations on CUDA cores, for every dtype and mode that the tensor_core path does not take.
///
/// x, h, y and weights f32, bf16 or f16, in any mix; every NumericMode; any strides
/// and alignment; any rank of 1..512. No operand is rounded before its product: an fp32 x keeps all
/// its bits.
/// Rounding  one fp32 product and one fp32 sum per term, not fused, k and j ascending from +0, then
///           the roundings of the mode: the bits of reference/lora/linear.hpp, which says what each
///           mode is (NaN payloads may differ).
/// Bound     error_bound() of error_bound.hpp with unit 2^-24 (statement [1.18]). A term of h
/// passes
///           K roundings: one product and up to K - 1 sums. A term of d passes r' + 1: the product
///           with B, up to r' - 1 sums, and the product with the scaling. Weight is the dtype of A
///           and B, also where x has another.
/// Repeats   bitwise: terms are added in the order of their index, whatever CTA does it.
/// Covered   as in lora_layer.hpp; nothing else is read or written.
/// Cost      no workspace, a grid of fixed size. A small fraction of the tensor cores' speed.
/// Errors    std::runtime_error: CUDA's name and text.
void launch_generic_lora(const LoraLaunch& launch);

}  // namespace loratory::gpu
