#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/product/product_shape.hpp"

// Which kernel computes a product, and the file that keeps the answers.

namespace loratory::gpu {

/// skinny: own, on tensor cores, made for few tokens. plain: own, on CUDA cores, for tests.
enum class ProductKernel : uint8_t { skinny, plain, cublaslt };

struct ProductChoice {
  ProductKernel kernel = ProductKernel::plain;
  int32_t columns = 0;      ///< skinny: of y in a tile
  int32_t cluster = 0;      ///< skinny: CTAs side by side, which share the loads of x
  int32_t token_ctas = 1;   ///< skinny: so many times, with other tokens: they share those of W
  std::string algorithm{};  ///< cublaslt: algorithm_name()

  int32_t num_ctas() const { return cluster * token_ctas; }  ///< skinny: of a cluster
  auto operator<=>(const ProductChoice&) const = default;
};

/// "skinny:32:4", "skinny:64:1:2" with token_ctas, "plain", "cublaslt:66/20/36/1/0/0/0/5/0"
std::string to_text(const ProductChoice& choice);
/// Errors   InputError at `place`: no such kernel, a tile without a kernel.
ProductChoice choice_from_text(std::string_view text, const std::string& place);

/// The kernel for every M up to `tokens` that no earlier bucket has.
struct ProductBucket {
  int64_t tokens = 0;
  ProductChoice choice{};
  ProductChoice before_lora{};  ///< behind which LoRA of the same x comes (ProductUse)
  double us = 0;                ///< what one launch took when it was chosen
  int64_t num_compared = 0;     ///< results whose bits were compared with the own kernel's

  bool operator==(const ProductBucket&) const = default;
};
using ProductPlan = std::vector<ProductBucket>;

/// 8, 16, 32, ... and max_tokens as the last.
std::vector<int64_t> token_buckets(int64_t max_tokens);

/// The bucket of M; the plan goes far enough.
const ProductBucket& bucket_of(const ProductPlan& plan, int64_t num_tokens);

/// On what a plan was made. It is worth nothing on anything else.
struct ProductKey {
  std::string gpu, driver, cublaslt, order;
  int64_t kernels = 0;  ///< kProductKernels of the build

  bool operator==(const ProductKey&) const = default;
};

/// Goes up when an own kernel, its order of sums or what a plan is chosen by changes.
inline constexpr int64_t kProductKernels = 15;

/// All plans of one device.
struct ProductCache {
  ProductKey key{};
  std::map<ProductShape, ProductPlan> plans{};

  bool operator==(const ProductCache&) const = default;
};

/// Errors   InputError naming `file` and the key: not JSON, a field that is missing or makes no
///          sense, buckets that are not those of max_tokens, a kernel that cannot compute the
///          shape.
ProductCache parse_product_cache(std::string_view text, const std::string& file);
std::string to_json(const ProductCache& cache);

/// Why plans made with `made` cannot be used here, in words; empty if they can.
std::string difference(const ProductKey& made, const ProductKey& here);

}  // namespace loratory::gpu
