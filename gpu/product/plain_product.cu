#include <algorithm>

#include "gpu/kernels/fragments.cuh"
#include "gpu/product/skinny_product.hpp"
#include "gpu/runtime/cuda_check.hpp"

// A CTA computes 16 tokens of 16 columns; a thread owns one sum, and adds its terms in the order of
// k. W and x come through shared memory 32 numbers of each row at a time.

namespace loratory::gpu {
namespace {

using reference::Dtype;

constexpr int kTile = 16, kDepth = 32;

struct PlainParams {
  Dtype weight, out;
  const void *w, *x, *bias;
  void* y;
  int64_t w_stride, x_stride, y_stride;
  int num_tokens, num_out, num_in;
};

__device__ float number(Dtype dtype, const void* data, int64_t i) {
  if (dtype == Dtype::f32) return static_cast<const float*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return dtype == Dtype::bf16 ? to_float<__nv_bfloat16>(bits) : to_float<__half>(bits);
}

__device__ void set_number(Dtype dtype, void* data, int64_t i, float v) {
  if (dtype == Dtype::f32)
    static_cast<float*>(data)[i] = v;
  else
    static_cast<uint16_t*>(data)[i] =
        dtype == Dtype::bf16 ? to_bits<__nv_bfloat16>(v) : to_bits<__half>(v);
}

/// 16 rows of 32 numbers from `row` and `k` on. What does not exist stays as it is.
__device__ void load_rows(float (&to)[kTile][kDepth + 1], Dtype dtype, const void* data,
                          int64_t stride, int row, int num_rows, int k, int num_in) {
  for (int i = int(threadIdx.x); i < kTile * kDepth; i += kTile * kTile) {
    const int r = i / kDepth, c = i % kDepth;
    if (row + r < num_rows && k + c < num_in)
      to[r][c] = number(dtype, data, (row + r) * stride + k + c);
  }
}

__global__ void __launch_bounds__(kTile* kTile)
    plain_product_kernel(const __grid_constant__ PlainParams p) {
  __shared__ float w[kTile][kDepth + 1], x[kTile][kDepth + 1];
  const int column = int(threadIdx.x) % kTile, token = int(threadIdx.x) / kTile;
  const int first_column = int(blockIdx.x) * kTile;
  for (int first = int(blockIdx.y) * kTile; first < p.num_tokens; first += int(gridDim.y) * kTile) {
    float sum = 0;
    for (int k = 0; k < p.num_in; k += kDepth) {
      load_rows(w, p.weight, p.w, p.w_stride, first_column, p.num_out, k, p.num_in);
      load_rows(x, p.weight, p.x, p.x_stride, first, p.num_tokens, k, p.num_in);
      __syncthreads();
      const int depth = min(kDepth, p.num_in - k);
      for (int c = 0; c < depth; ++c) sum = __fmaf_rn(x[token][c], w[column][c], sum);
      __syncthreads();
    }
    const int n = first_column + column, t = first + token;
    if (n >= p.num_out || t >= p.num_tokens) continue;
    if (p.bias != nullptr) sum = __fadd_rn(sum, number(p.weight, p.bias, n));
    set_number(p.out, p.y, t * p.y_stride + n, sum);
  }
}

}  // namespace

void launch_plain_product(const ProductShape& shape, const ProductTensors& tensors,
                          CUstream_st* stream) {
  constexpr int64_t kMostRows = 65535;  // of a grid
  const int64_t num_tokens = tensors.x.shape[0];
  if (num_tokens == 0) return;
  const dim3 grid(unsigned((shape.num_out + kTile - 1) / kTile),
                  unsigned(std::min(kMostRows, (num_tokens + kTile - 1) / kTile)));
  plain_product_kernel<<<grid, kTile * kTile, 0, stream>>>({.weight = shape.weight,
                                                            .out = shape.out,
                                                            .w = tensors.weight.data,
                                                            .x = tensors.x.data,
                                                            .bias = tensors.bias,
                                                            .y = tensors.y.data,
                                                            .w_stride = tensors.weight.strides[0],
                                                            .x_stride = tensors.x.strides[0],
                                                            .y_stride = tensors.y.strides[0],
                                                            .num_tokens = int(num_tokens),
                                                            .num_out = int(shape.num_out),
                                                            .num_in = int(shape.num_in)});
  LORATORY_CUDA_CHECK(cudaGetLastError());
}

}  // namespace loratory::gpu
