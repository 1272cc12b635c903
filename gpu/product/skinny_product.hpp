#pragma once

#include "gpu/plan/lora_launch.hpp"
#include "gpu/product/product_plan.hpp"
#include "gpu/product/product_shape.hpp"

namespace loratory::gpu {

/// y = x W^T (+ bias) on tensor cores, any M; or silu_mul() of that, rounded to 16 bits in between.
/// Made for few tokens: above 128 a library is faster.
///
/// Rounding  products are exact; each sum is one chain of steps of 16 numbers, k ascending from 0,
///           in the tensor cores' fp32; the bias is added in fp32; one rounding to y.
/// Bound     product_error_bound().
/// Repeats   bitwise, and row t does not depend on M, its place, the tile or the cluster.
/// Cost      reads W once for each 128 tokens, at once for all of them; no workspace.
/// Errors    std::runtime_error: a GPU without wgmma; CUDA's name and text. The arguments were
///           checked.
void launch_skinny_product(const ProductShape& shape, const ProductChoice& choice,
                           const ProductTensors& tensors, CUstream_st* stream, LaunchOrder order);

/// The same on CUDA cores for every dtype and alignment: one chain of fused multiply-adds, k
/// ascending from +0, unit 2^-24. For tests of f32 models and sizes that no model has.
void launch_plain_product(const ProductShape& shape, const ProductTensors& tensors,
                          CUstream_st* stream);

}  // namespace loratory::gpu
