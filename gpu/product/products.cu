#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <utility>

#include "gpu/product/base_product.hpp"
#include "gpu/product/cublaslt.hpp"
#include "gpu/product/product_tuner.hpp"
#include "gpu/product/skinny_plan.hpp"
#include "gpu/product/skinny_product.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "gpu/runtime/device_buffer.hpp"
#include "reference/base/atomic_file.hpp"
#include "reference/base/check.hpp"
#include "reference/base/escape.hpp"
#include "reference/base/files.hpp"

namespace loratory::gpu {
namespace {

constexpr size_t kWorkspaceBytes = size_t(32) << 20;  // what NVIDIA recommends for Hopper
constexpr int64_t kMostSkinnyTokens = 128;            // above, a library is faster
constexpr const char* kNone = "none";

std::string driver_version() {
  int version = 0;
  LORATORY_CUDA_CHECK(cudaDriverGetVersion(&version));
  std::string out =
      "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  const char* const file = "/sys/module/nvidia/version";
  if (std::filesystem::exists(file)) {
    const std::string number = read_file(file, 4096);
    out += ", " + printable(number.substr(0, number.find('\n')));
  }
  return out;
}

std::string order_of(const ProductOptions& options) {
  return std::string(name(options.order)) + (overlaps(options.launches) ? ", overlapped" : "");
}

cudaDeviceProp properties() {
  int device = 0;
  cudaDeviceProp out{};
  LORATORY_CUDA_CHECK(cudaGetDevice(&device));
  LORATORY_CUDA_CHECK(cudaGetDeviceProperties(&out, device));
  return out;
}

std::unique_ptr<CublasLt> load_cublaslt(const std::string& file) {
  const char* const variable = std::getenv("LORATORY_CUBLASLT");
  const bool none =
      file == kNone || (file.empty() && variable != nullptr && variable == std::string(kNone));
  return none ? nullptr : std::make_unique<CublasLt>(file);
}

}  // namespace

struct Products::State {
  ProductOptions options;
  std::unique_ptr<CublasLt> cublaslt;
  ProductKey key;
  int num_sms = 0;
  DeviceBuffer workspace;
  std::map<ProductShape, ProductPlan> plans, cached;
  std::map<std::pair<ProductShape, std::string>, CublasLt::Algorithm> algorithms;
  std::vector<std::string> notes;
  bool is_new = false;  // some plan is in no file

  void read_cache() {
    if (options.cache_file.empty() || !std::filesystem::exists(options.cache_file)) return;
    ProductCache cache = parse_product_cache(read_text_file(options.cache_file, size_t(4) << 20),
                                             options.cache_file);
    const std::string why = difference(cache.key, key);
    if (why.empty())
      cached = std::move(cache.plans);
    else
      notes.push_back(options.cache_file + ": not used: " + why);
  }

  std::vector<std::string> learn_algorithms(const ProductShape& shape, int64_t num_tokens,
                                            bool may_split) {
    std::vector<std::string> names;
    if (cublaslt == nullptr || (!may_split && !may_have_bits_of_own(shape))) return names;
    for (CublasLt::Algorithm& algorithm :
         cublaslt->algorithms(shape, num_tokens, may_split, kWorkspaceBytes)) {
      names.push_back(algorithm.name);
      algorithms.insert_or_assign({shape, algorithm.name}, std::move(algorithm));
    }
    return names;
  }

  ProductPlan small_plan(const ProductShape& shape) const {
    ProductPlan out;
    for (const int64_t tokens : token_buckets(shape.max_tokens)) {
      const ProductChoice choice = skinny_choices(shape, tokens, num_sms)[0];
      out.push_back({.tokens = tokens, .choice = choice, .before_lora = choice});
    }
    return out;
  }

  bool can_use(const ProductShape& shape, int64_t num_tokens, const ProductChoice& choice) {
    if (choice.kernel != ProductKernel::cublaslt) return true;
    const auto names = learn_algorithms(shape, num_tokens, options.order == ProductOrder::fast);
    return std::ranges::find(names, choice.algorithm) != names.end();
  }
  /// Whether everything that a kept plan names is there. The library is asked for its algorithms
  /// again: nothing of a file reaches it.
  bool can_use(const ProductShape& shape, const ProductPlan& plan) {
    return std::ranges::all_of(plan, [&](const ProductBucket& bucket) {
      return can_use(shape, bucket.tokens, bucket.choice) &&
             can_use(shape, bucket.tokens, bucket.before_lora);
    });
  }
};

Products::Products(ProductOptions options) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.options = std::move(options);
  s.cublaslt = load_cublaslt(s.options.cublaslt);
  const cudaDeviceProp device = properties();
  s.num_sms = device.multiProcessorCount;
  s.key = {.gpu = device.name,
           .driver = driver_version(),
           .cublaslt = s.cublaslt == nullptr ? kNone : s.cublaslt->version(),
           .order = order_of(s.options),
           .kernels = kProductKernels};
  s.read_cache();
  if (s.cublaslt != nullptr) s.workspace = make_device_buffer(kWorkspaceBytes);
}

Products::~Products() = default;

const ProductPlan& Products::plan(const ProductShape& shape) {
  check_shape(shape);
  State& s = *state_;
  if (const auto found = s.plans.find(shape); found != s.plans.end()) return found->second;
  if (!has_tensor_core_product(shape)) {
    const ProductChoice plain{.kernel = ProductKernel::plain};
    const ProductBucket all{.tokens = shape.max_tokens, .choice = plain, .before_lora = plain};
    return s.plans.emplace(shape, ProductPlan{all}).first->second;
  }
  if (is_small(shape)) return s.plans.emplace(shape, s.small_plan(shape)).first->second;
  const auto kept = s.cached.find(shape);
  if (kept != s.cached.end() && s.can_use(shape, kept->second)) {
    return s.plans.emplace(shape, kept->second).first->second;
  }
  ProductPlan tuned = tune_product(*this, shape, s.options, s.notes);
  s.is_new = true;
  return s.plans.emplace(shape, std::move(tuned)).first->second;
}

void Products::save() const {
  const State& s = *state_;
  if (s.options.cache_file.empty() || !s.is_new) return;
  ProductCache cache{.key = s.key, .plans = s.cached};
  for (const auto& [shape, plan] : s.plans) {
    if (has_tensor_core_product(shape) && !is_small(shape))
      cache.plans.insert_or_assign(shape, plan);
  }
  AtomicFile file(s.options.cache_file);
  file.stream() << to_json(cache);
  file.commit();
}

void Products::launch(const ProductShape& shape, const ProductChoice& choice,
                      const ProductTensors& tensors, CUstream_st* stream, LaunchOrder order) const {
  const State& s = *state_;
  LORATORY_ASSERT(!tensors.is_gated || fuses_silu(shape, choice, tensors),
                  "launch_silu_mul() asks");
  switch (choice.kernel) {
    case ProductKernel::skinny:
      return launch_skinny_product(shape, choice, tensors, stream, order);
    case ProductKernel::plain:
      return launch_plain_product(shape, tensors, stream);
    case ProductKernel::cublaslt:
      break;
  }
  if (is_aligned_as_packed(tensors)) {
    const auto found = s.algorithms.find({shape, choice.algorithm});
    LORATORY_ASSERT(found != s.algorithms.end(), "plan() and choices() name algorithms they know");
    const CublasLt::Workspace workspace{s.workspace.get(), kWorkspaceBytes};
    if (s.cublaslt->run(shape, found->second, tensors, workspace, stream)) return;
  }
  const auto own = skinny_choices(shape, tensors.x.shape[0], s.num_sms);
  launch_skinny_product(shape, own[0], tensors, stream, order);
}

std::vector<ProductChoice> Products::choices(const ProductShape& shape, int64_t num_tokens,
                                             bool may_split) {
  if (!has_tensor_core_product(shape)) return {{.kernel = ProductKernel::plain}};
  State& s = *state_;
  std::vector<ProductChoice> out = skinny_choices(shape, num_tokens, s.num_sms);
  const std::vector<std::string> names = s.learn_algorithms(shape, num_tokens, may_split);
  if (num_tokens > kMostSkinnyTokens && !names.empty()) out.resize(1);
  for (const std::string& name : names) {
    const ProductChoice choice{.kernel = ProductKernel::cublaslt, .algorithm = name};
    if (std::ranges::find(out, choice) == out.end()) out.push_back(choice);
  }
  return out;
}

int Products::num_sms() const { return state_->num_sms; }
const ProductKey& Products::key() const { return state_->key; }
const std::vector<std::string>& Products::notes() const { return state_->notes; }
size_t Products::workspace_bytes() const {
  return state_->workspace == nullptr ? 0 : kWorkspaceBytes;
}

}  // namespace loratory::gpu
