#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/plan/lora_launch.hpp"
#include "gpu/product/product_plan.hpp"
#include "gpu/product/product_shape.hpp"

// The products of the base model: y[M, N] = x[M, K] W[N, K]^T (+ bias[N]).
//
// Numbers  bf16 or f16 weights and x: products are exact, sums fp32, the bias is added in fp32, one
//          rounding to y (the weights' dtype, or f32). f32, and rows of K that are no multiple of
//          16 bytes: fused multiply-adds on CUDA cores, slow.
// Bits     Order exact: row t of y is a function of row t of x, W and the bias alone, not of M, the
//          row's place or the kernel. Its sum is one chain of tensor-core steps of 16 numbers, k
//          ascending from 0. Every kernel of a plan was seen to give these bits on this device.
//          Order fast: whatever is fastest; the bits of a row may change with M.
// Bound    order exact: product_error_bound() of product_bound.hpp.
// Memory   one workspace, which cuBLASLt asks for. So products of one `Products` must not run at
//          the same time on several streams.
// GPUs     sm_90 (H100, H200): the own kernel, which defines the bits, is by wgmma. Elsewhere a
//          plan or a launch of it is std::runtime_error.

namespace loratory::gpu {

/// Whether SMs that a product leaves idle are of use: to a LoRA of the same x behind it, or to the
/// product itself behind a kernel that has few SMs. The bits are the same.
enum class ProductUse : uint8_t { alone, before_lora };

/// Which sums a product may make.
enum class ProductOrder : uint8_t { exact, fast };
std::string_view name(ProductOrder order);

struct ProductOptions {
  ProductOrder order = ProductOrder::exact;
  /// How the engine will launch its products, and so how own kernels are timed: overlapped they
  /// take 2 to 3 us less, those of cuBLASLt do not.
  LaunchOrder launches = LaunchOrder::after_previous;
  /// The file of libcublasLt.so.13. Empty: $LORATORY_CUBLASLT, else where the loader and CUDA have
  /// it. "none": own kernels alone, slower above 128 tokens.
  std::string cublaslt{};
  /// Keeps the plans between starts. Empty: every start times the kernels anew.
  std::string cache_file{};
};

/// The plans of a model's products on the current device.
class Products {
 public:
  /// Errors   InputError: a cache file that is none. std::runtime_error: no cuBLASLt, in one line
  ///          that says where it was looked for; CUDA's name and text.
  explicit Products(ProductOptions options);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  /// The kernel for each bucket of M; valid as long as this object. A shape that is neither known
  /// nor in the cache file is timed and its bits compared, about a second, and meanwhile takes
  /// memory: 256 MiB, or its weights if they are larger, and the largest x once and y twice.
  /// Errors   InputError as check_shape(); std::runtime_error from CUDA, also out of memory.
  const ProductPlan& plan(const ProductShape& shape);

  /// Writes the cache file if there is one and plans are new.
  void save() const;

  /// Launches one kernel on checked tensors. Never allocates, never waits, may be captured. Rows
  /// that are less aligned than packed ones take the own kernel, whatever was chosen.
  void launch(const ProductShape& shape, const ProductChoice& choice, const ProductTensors& tensors,
              CUstream_st* stream, LaunchOrder order) const;

  /// Kernels for M tokens that are worth timing; those of cuBLASLt that sum K in parts only if
  /// `may_split`. The first has the order of sums that the others are compared with.
  std::vector<ProductChoice> choices(const ProductShape& shape, int64_t num_tokens, bool may_split);

  int num_sms() const;
  /// What a plan is valid for.
  const ProductKey& key() const;
  /// What a user may want to know, a line each: why a cache was not used, kernels that were timed
  /// and had other bits.
  const std::vector<std::string>& notes() const;
  size_t workspace_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// One product: weights, and the plan of their shape.
class BaseProduct {
 public:
  /// `feeds_silu_mul` as in ProductShape. Lifetime: `products`, weight and bias outlive it.
  /// Errors   InputError: check_shape(), check_weights(); those of Products::plan().
  BaseProduct(Products& products, const DeviceView& weight, const void* bias, reference::Dtype out,
              int64_t max_tokens, bool feeds_silu_mul = false);

  /// y = x W^T (+ bias), for x [M, K] and y [M, N], 0 <= M <= max_tokens. Never allocates, never
  /// waits, may be captured. With LaunchOrder::overlaps_previous weights may be fetched before the
  /// previous kernel of the stream has ended; x and y wait for it.
  /// Errors   InputError as check_activations(); std::runtime_error from CUDA and cuBLASLt.
  void launch(const DeviceView& x, const DeviceView& y, CUstream_st* stream,
              LaunchOrder order = LaunchOrder::after_previous,
              ProductUse use = ProductUse::alone) const;

  /// y = silu_mul() of x W^T, for y [M, N / 2]: the rows of W are gate's and, behind them, up's.
  /// The bits are those of launch() and silu_mul(). False if the kernel for M cannot do both; then
  /// nothing was launched. All else as launch().
  bool launch_silu_mul(const DeviceView& x, const DeviceView& y, CUstream_st* stream,
                       LaunchOrder order = LaunchOrder::after_previous) const;

  /// How a kernel that reads the same x is launched behind launch() of M tokens: x_is_ready behind
  /// an own kernel, which it may then run beside; else overlaps_previous.
  LaunchOrder order_behind(int64_t num_tokens, ProductUse use) const;
  /// The SMs that this launch() leaves to such a kernel from the begin on.
  int32_t idle_sms(int64_t num_tokens, ProductUse use) const;

  const ProductShape& shape() const { return shape_; }

 private:
  const ProductChoice& choice(int64_t num_tokens, ProductUse use) const;

  const Products* products_;
  ProductShape shape_;
  DeviceView weight_;
  const void* bias_;
  const ProductPlan* plan_;
};

}  // namespace loratory::gpu
