#include "gpu/product/product_plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "gpu/product/skinny_plan.hpp"
#include "reference/base/check.hpp"
#include "reference/base/escape.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/text.hpp"

namespace loratory::gpu {

namespace {

constexpr std::string_view kSkinny = "skinny", kPlain = "plain", kCublasLt = "cublaslt";
constexpr size_t kLongestAlgorithm = 120;

bool is_algorithm(std::string_view text) {
  return !text.empty() && text.size() <= kLongestAlgorithm &&
         text.find_first_not_of("0123456789/") == std::string_view::npos;
}

}  // namespace

std::string to_text(const ProductChoice& choice) {
  switch (choice.kernel) {
    case ProductKernel::skinny:
      return fmt::format("{}:{}:{}{}", kSkinny, choice.columns, choice.cluster,
                         choice.token_ctas > 1 ? fmt::format(":{}", choice.token_ctas) : "");
    case ProductKernel::cublaslt:
      return fmt::format("{}:{}", kCublasLt, choice.algorithm);
    case ProductKernel::plain:
      break;
  }
  return std::string(kPlain);
}

ProductChoice choice_from_text(std::string_view text, const std::string& place) {
  const std::vector<std::string_view> parts = split(text, ':');
  if (parts.size() == 1 && parts[0] == kPlain) return {.kernel = ProductKernel::plain};
  if (parts.size() == 2 && parts[0] == kCublasLt && is_algorithm(parts[1])) {
    return {.kernel = ProductKernel::cublaslt, .algorithm = std::string(parts[1])};
  }
  if (parts[0] == kSkinny && (parts.size() == 3 || parts.size() == 4)) {
    const auto number = [&](size_t i) { return to_number<int32_t>(parts[i]).value_or(0); };
    const ProductChoice choice{.kernel = ProductKernel::skinny,
                               .columns = number(1),
                               .cluster = number(2),
                               .token_ctas = parts.size() == 4 ? number(3) : 1};
    const bool is_shortest = parts.size() == 3 || choice.token_ctas > 1;
    if (is_shortest && has_skinny_kernel(choice)) return choice;
  }
  throw InputError(place, "names no kernel of this build", "delete the file, it is made anew");
}

std::vector<int64_t> token_buckets(int64_t max_tokens) {
  std::vector<int64_t> buckets;
  for (int64_t tokens = 8; tokens < max_tokens; tokens *= 2) buckets.push_back(tokens);
  buckets.push_back(max_tokens);
  return buckets;
}

const ProductBucket& bucket_of(const ProductPlan& plan, int64_t num_tokens) {
  const auto found = std::ranges::find_if(
      plan, [num_tokens](const ProductBucket& bucket) { return num_tokens <= bucket.tokens; });
  LORATORY_ASSERT(found != plan.end(), "check_activations() knows the largest number of tokens");
  return *found;
}

std::string difference(const ProductKey& made, const ProductKey& here) {
  const auto differs = [](const char* what, const auto& then, const auto& now) {
    return printable(fmt::format("was made with {} {}, this is {}", what, then, now));
  };
  if (made.gpu != here.gpu) return differs("GPU", made.gpu, here.gpu);
  if (made.driver != here.driver) return differs("driver", made.driver, here.driver);
  if (made.cublaslt != here.cublaslt) return differs("cuBLASLt", made.cublaslt, here.cublaslt);
  if (made.order != here.order) return differs("order", made.order, here.order);
  if (made.kernels != here.kernels)
    return differs("kernels of version", made.kernels, here.kernels);
  return "";
}

}  // namespace loratory::gpu
