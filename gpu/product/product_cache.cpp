#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "gpu/product/product_plan.hpp"
#include "gpu/product/skinny_plan.hpp"
#include "reference/base/json_fields.hpp"

namespace loratory::gpu {

using reference::Dtype;

namespace {

constexpr int64_t kMostTokens = int64_t(1) << 30;
constexpr int64_t kMostCompared = int64_t(1) << 53;
constexpr size_t kLongestName = 200;
constexpr const char* kRemedy = "delete the file, it is made anew";

Dtype dtype_field(const JsonFields& fields, const char* key) {
  const std::string text = fields.text_or(key, "");
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    if (text == name(dtype)) return dtype;
  }
  fields.fail(key, "needs f32, bf16 or f16", kRemedy);
}

std::string name_field(const JsonFields& fields, const char* key) {
  std::string text = fields.text_or(key, "");
  if (text.empty() || text.size() > kLongestName) {
    fields.fail(key, fmt::format("needs 1 to {} bytes", kLongestName), kRemedy);
  }
  return text;
}

const nlohmann::json& list_field(const JsonFields& fields, const char* key) {
  const nlohmann::json* const list = fields.find(key);
  if (list == nullptr || !list->is_array()) fields.fail(key, "needs a list", kRemedy);
  return *list;
}

const nlohmann::json& object_of(const JsonFields& fields, const char* key,
                                const nlohmann::json& item) {
  if (!item.is_object()) fields.fail(key, "needs objects", kRemedy);
  return item;
}

// Whether a kernel can compute products of this shape at all.
bool fits(const ProductShape& shape, const ProductChoice& choice) {
  return (choice.kernel == ProductKernel::plain) == !has_tensor_core_product(shape);
}

ProductChoice choice_field(const JsonFields& fields, const char* key, const ProductShape& shape) {
  ProductChoice choice =
      choice_from_text(fields.text_or(key, ""), fields.file() + ": " + std::string(key));
  if (!fits(shape, choice)) fields.fail(key, "is a kernel that cannot compute this shape", kRemedy);
  return choice;
}

ProductBucket bucket_from(const JsonFields& fields, const ProductShape& shape) {
  ProductBucket bucket;
  bucket.tokens = fields.size("tokens", kMostTokens);
  bucket.choice = choice_field(fields, "choice", shape);
  bucket.before_lora = choice_field(fields, "before_lora", shape);
  bucket.us = fields.number_or("us", 0, -1);
  if (fields.has("compared")) {
    bucket.num_compared = fields.integer("compared", *fields.find("compared"), 0, kMostCompared);
  }
  return bucket;
}

ProductPlan plan_from(const JsonFields& fields, const ProductShape& shape) {
  ProductPlan plan;
  for (const nlohmann::json& item : list_field(fields, "buckets")) {
    plan.push_back(bucket_from(
        JsonFields(object_of(fields, "buckets", item), fields.file(), "buckets."), shape));
  }
  const std::vector<int64_t> wanted = token_buckets(shape.max_tokens);
  bool same = plan.size() == wanted.size();
  for (size_t i = 0; same && i < plan.size(); ++i) same = plan[i].tokens == wanted[i];
  if (!same) fields.fail("buckets", "are not those of max_tokens", kRemedy);
  return plan;
}

ProductShape shape_from(const JsonFields& fields) {
  constexpr int64_t kLargest = 2147483647;
  const ProductShape shape{.num_out = fields.size("num_out", kLargest),
                           .num_in = fields.size("num_in", kLargest),
                           .max_tokens = fields.size("max_tokens", kMostTokens),
                           .weight = dtype_field(fields, "weight"),
                           .out = dtype_field(fields, "out"),
                           .has_bias = fields.flag_or("bias", false),
                           .feeds_silu_mul = fields.flag_or("silu_mul", false)};
  if (shape.out != shape.weight && shape.out != Dtype::f32) {
    fields.fail("out", "does not go with the weights", kRemedy);
  }
  return shape;
}

ProductKey key_from(const JsonFields& fields) {
  return {.gpu = name_field(fields, "gpu"),
          .driver = name_field(fields, "driver"),
          .cublaslt = name_field(fields, "cublaslt"),
          .order = name_field(fields, "order"),
          .kernels = fields.size("kernels", kMostTokens)};
}

nlohmann::ordered_json to_json(const ProductShape& shape, const ProductPlan& plan) {
  nlohmann::ordered_json out{{"num_out", shape.num_out},        {"num_in", shape.num_in},
                             {"max_tokens", shape.max_tokens},  {"weight", name(shape.weight)},
                             {"out", name(shape.out)},          {"bias", shape.has_bias},
                             {"silu_mul", shape.feeds_silu_mul}};
  for (const ProductBucket& bucket : plan) {
    out["buckets"].push_back({{"tokens", bucket.tokens},
                              {"choice", to_text(bucket.choice)},
                              {"before_lora", to_text(bucket.before_lora)},
                              {"us", bucket.us},
                              {"compared", bucket.num_compared}});
  }
  return out;
}

}  // namespace

ProductCache parse_product_cache(std::string_view text, const std::string& file) {
  const nlohmann::json root = parse_json_object(text, file);
  const JsonFields fields(root, file);
  ProductCache cache{.key = key_from(fields), .plans = {}};
  for (const nlohmann::json& item : list_field(fields, "plans")) {
    const JsonFields plan(object_of(fields, "plans", item), file, "plans.");
    const ProductShape shape = shape_from(plan);
    if (!cache.plans.emplace(shape, plan_from(plan, shape)).second) {
      fields.fail("plans", "has a shape twice: " + describe(shape), kRemedy);
    }
  }
  return cache;
}

std::string to_json(const ProductCache& cache) {
  nlohmann::ordered_json out{
      {"gpu", cache.key.gpu},           {"driver", cache.key.driver},
      {"cublaslt", cache.key.cublaslt}, {"order", cache.key.order},
      {"kernels", cache.key.kernels},   {"plans", nlohmann::ordered_json::array()}};
  for (const auto& [shape, plan] : cache.plans) out["plans"].push_back(to_json(shape, plan));
  return out.dump(1) + "\n";
}

}  // namespace loratory::gpu
