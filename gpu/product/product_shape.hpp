#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "gpu/runtime/device_view.hpp"

namespace loratory::gpu {

/// What products of one kind have in common: y[M, N] = x[M, K] W[N, K]^T (+ bias[N]).
struct ProductShape {
  int64_t num_out = 0;                               ///< N
  int64_t num_in = 0;                                ///< K
  int64_t max_tokens = 0;                            ///< largest M of any launch
  reference::Dtype weight = reference::Dtype::bf16;  ///< of W, x and bias
  reference::Dtype out = reference::Dtype::bf16;     ///< of y: that of W, or f32
  bool has_bias = false;
  /// W's rows are gate's and up's, and without LoRA SwiGLU follows: plans prefer a kernel that ends
  /// with it (BaseProduct::launch_silu_mul()).
  bool feeds_silu_mul = false;

  auto operator<=>(const ProductShape&) const = default;
};

/// "4096 x 14336 bf16 -> f32, bias, SwiGLU, up to 8192 tokens"
std::string describe(const ProductShape& shape);

/// Errors   InputError naming the field: no size from 1 to 2^31 - 1; a dtype other than f32, bf16
///          and f16; an f16 y of bf16 weights or the like.
void check_shape(const ProductShape& shape);

/// Whether the tensor cores take it: 16-bit weights, K a multiple of 8 (rows of 16 bytes).
bool has_tensor_core_product(const ProductShape& shape);

/// Whether W, of up to 128 KiB, is read in less time than a launch takes: no kernel is worth
/// measuring.
bool is_small(const ProductShape& shape);

/// Whether a library's kernels can be of the own ones' class of bits: N is a multiple of 8. For
/// others cuBLASLt 13.1 has kernels of another order, whose bits differ so rarely (one row of 64)
/// that comparing at start-up would miss it.
bool may_have_bits_of_own(const ProductShape& shape);

/// The tensors of one launch.
struct ProductTensors {
  DeviceView weight{};         ///< [N, K]
  const void* bias = nullptr;  ///< [N], of the weights' dtype; null if the shape has none
  DeviceView x{};              ///< [M, K]
  DeviceView y{};              ///< [M, N]
  bool is_gated = false;       ///< y is [M, N / 2]: SwiGLU of the product's halves
};

/// W and the bias. Errors   InputError naming the tensor: axes, sizes or dtypes that are not the
/// shape's; rows whose numbers are not side by side, or overlap; no memory; a bias too many or too
/// few; for the tensor cores, rows that do not begin at multiples of 16 bytes.
void check_weights(const ProductShape& shape, const ProductTensors& tensors);
/// x and y; M. Errors   the same, and more tokens than max_tokens.
int64_t check_activations(const ProductShape& shape, const ProductTensors& tensors);

/// Whether all rows begin as well aligned as they would without gaps, up to 16 bytes. A library
/// that was asked for kernels for such rows may have none for others.
bool is_aligned_as_packed(const ProductTensors& tensors);

}  // namespace loratory::gpu
