#include "gpu/product/product_shape.hpp"

#include <fmt/format.h>

#include <limits>
#include <string_view>

#include "reference/base/input_error.hpp"

namespace loratory::gpu {

using reference::Dtype;

namespace {

constexpr int64_t kVector = 16;  // bytes that a bulk copy moves at least

bool is_model_dtype(Dtype dtype) {
  return dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f16;
}

void check_size(const char* field, int64_t size) {
  if (size < 1 || size > std::numeric_limits<int32_t>::max()) {
    throw InputError(field, fmt::format("is {}, needs 1 to 2147483647", size));
  }
}

void check_matrix(const char* tensor, const DeviceView& view, Dtype dtype, int64_t columns) {
  if (view.num_axes != 2) throw InputError(tensor, "needs two axes", describe(view));
  if (view.dtype != dtype) {
    throw InputError(
        tensor, fmt::format("has dtype {}, this product's is {}", name(view.dtype), name(dtype)));
  }
  if (view.shape[1] != columns) {
    throw InputError(tensor, fmt::format("has rows of {} numbers, this product's have {}",
                                         view.shape[1], columns));
  }
  if (view.strides[1] != 1 && columns > 1) {
    throw InputError(tensor, "needs the numbers of a row side by side", describe(view));
  }
  if (view.shape[0] > 1 && view.strides[0] < columns) {
    throw InputError(tensor, "has rows that overlap", describe(view));
  }
  if (view.shape[0] > 0 && view.data == nullptr) throw InputError(tensor, "has no memory");
}

void check_alignment(const char* tensor, const DeviceView& view) {
  const bool apart =
      view.shape[0] > 1 && view.strides[0] * int64_t(size_bytes(view.dtype)) % kVector != 0;
  if (apart || reinterpret_cast<uintptr_t>(view.data) % kVector != 0) {
    throw InputError(tensor, "needs rows that begin at multiples of 16 bytes", describe(view));
  }
}

uint64_t lowest_bit(uint64_t value) { return value & -value; }

bool is_aligned_as_packed(const DeviceView& view) {
  const uint64_t size = size_bytes(view.dtype);
  const uint64_t apart = view.shape[0] > 1 ? uint64_t(view.strides[0]) * size : 0;
  const uint64_t packed = uint64_t(view.shape[1]) * size | uint64_t(kVector);
  return lowest_bit(reinterpret_cast<uintptr_t>(view.data) | apart | uint64_t(kVector)) >=
         lowest_bit(packed);
}

}  // namespace

std::string describe(const ProductShape& shape) {
  return fmt::format("{} x {} {} -> {}{}{}, up to {} tokens", shape.num_out, shape.num_in,
                     name(shape.weight), name(shape.out), shape.has_bias ? ", bias" : "",
                     shape.feeds_silu_mul ? ", SwiGLU" : "", shape.max_tokens);
}

void check_shape(const ProductShape& shape) {
  check_size("num_out", shape.num_out);
  check_size("num_in", shape.num_in);
  check_size("max_tokens", shape.max_tokens);
  if (!is_model_dtype(shape.weight)) {
    throw InputError("weight",
                     fmt::format("has dtype {}, needs f32, bf16 or f16", name(shape.weight)));
  }
  if (shape.out != shape.weight && shape.out != Dtype::f32) {
    throw InputError("out", fmt::format("is {}, needs {} as the weights have, or f32",
                                        name(shape.out), name(shape.weight)));
  }
}

bool has_tensor_core_product(const ProductShape& shape) {
  return shape.weight != Dtype::f32 && shape.num_in % 8 == 0;
}

bool is_small(const ProductShape& shape) {
  constexpr int64_t kSmallBytes = 128 << 10;
  return shape.num_out * shape.num_in * int64_t(size_bytes(shape.weight)) <= kSmallBytes;
}

bool may_have_bits_of_own(const ProductShape& shape) { return shape.num_out % 8 == 0; }

void check_weights(const ProductShape& shape, const ProductTensors& tensors) {
  check_matrix("weight", tensors.weight, shape.weight, shape.num_in);
  if (tensors.weight.shape[0] != shape.num_out) {
    throw InputError("weight", fmt::format("has {} rows, this product's has {}",
                                           tensors.weight.shape[0], shape.num_out));
  }
  if ((tensors.bias != nullptr) != shape.has_bias) {
    throw InputError("bias", shape.has_bias ? "is missing" : "is not in this product's shape");
  }
  if (has_tensor_core_product(shape)) check_alignment("weight", tensors.weight);
}

int64_t check_activations(const ProductShape& shape, const ProductTensors& tensors) {
  check_matrix("x", tensors.x, shape.weight, shape.num_in);
  check_matrix("y", tensors.y, shape.out, tensors.is_gated ? shape.num_out / 2 : shape.num_out);
  const int64_t num_tokens = tensors.x.shape[0];
  if (tensors.y.shape[0] != num_tokens) {
    throw InputError("y", fmt::format("has {} rows, x has {}", tensors.y.shape[0], num_tokens));
  }
  if (num_tokens < 0 || num_tokens > shape.max_tokens) {
    throw InputError(
        "x", fmt::format("has {} rows, this product takes up to {}", num_tokens, shape.max_tokens));
  }
  if (has_tensor_core_product(shape) && num_tokens > 0) check_alignment("x", tensors.x);
  return num_tokens;
}

bool is_aligned_as_packed(const ProductTensors& tensors) {
  return is_aligned_as_packed(tensors.weight) && is_aligned_as_packed(tensors.x) &&
         is_aligned_as_packed(tensors.y);
}

}  // namespace loratory::gpu
