#include "gpu/product/product_tuner.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>

#include "gpu/product/product_cost.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "gpu/runtime/cuda_handles.hpp"
#include "gpu/runtime/device_buffer.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;

constexpr size_t kPoolBytes = size_t(256) << 20;  // several times an L2
constexpr int kReplays = 5, kNumThreads = 256, kNumBlocks = 132 * 8;

// --- data
// -----------------------------------------------------------------------------------------

__device__ uint64_t mixed(uint64_t v) {  // SplitMix64
  v += 0x9E3779B97F4A7C15ULL;
  v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9ULL;
  v = (v ^ v >> 27) * 0x94D049BB133111EBULL;
  return v ^ v >> 31;
}

/// Four uniform numbers make a bell; wide: a number of [1, 2) and a random exponent and sign.
__device__ float random_number(uint64_t bits, int widest) {
  if (widest == 0) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) sum += float(bits >> 16 * i & 0xFFFF) * 0x1p-16f;
    return (sum - 2) * 1.7f;
  }
  const int exponent = int(bits >> 32 & 0xFFFF) % (2 * widest + 1) - widest;
  const float mantissa = 1 + float(bits & 0xFFFF) * 0x1p-16f;
  return ldexpf(bits >> 63 != 0 ? -mantissa : mantissa, exponent);
}

__global__ void fill_kernel(void* to, int64_t count, Dtype dtype, uint64_t seed, int widest) {
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    const float v = random_number(mixed(seed + uint64_t(i)), widest);
    if (dtype == Dtype::f32)
      static_cast<float*>(to)[i] = v;
    else if (dtype == Dtype::bf16)
      static_cast<__nv_bfloat16*>(to)[i] = __float2bfloat16_rn(v);
    else
      static_cast<__half*>(to)[i] = __float2half_rn(v);
  }
}

__global__ void count_differences(const uint32_t* a, const uint32_t* b, int64_t num_words,
                                  uint64_t tail_bits, unsigned long long* count) {
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  unsigned long long differing = 0;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < num_words; i += stride) {
    const uint32_t mask = i + 1 == num_words && tail_bits != 0 ? (1U << tail_bits) - 1 : ~0U;
    differing += ((a[i] ^ b[i]) & mask) != 0 ? 1 : 0;
  }
  if (differing > 0) atomicAdd(count, differing);
}

// --- one shape
// ------------------------------------------------------------------------------------

struct Candidate {
  ProductChoice choice;
  double us = std::numeric_limits<double>::infinity();
  bool is_equal = true;
};

class Tuner {
 public:
  Tuner(Products& products, const ProductShape& shape, const ProductOptions& options,
        std::vector<std::string>& notes)
      : products_(products),
        shape_(shape),
        order_(options.order),
        launches_(options.launches),
        notes_(notes) {
    const size_t weight_bytes = aligned(bytes_of(shape.num_out, shape.num_in, shape.weight));
    num_copies_ = int(std::max<size_t>(1, kPoolBytes / weight_bytes));
    copy_bytes_ = weight_bytes;
    const size_t y_bytes = aligned(bytes_of(shape.max_tokens, shape.num_out, shape.out));
    pool_ = make_device_buffer(copy_bytes_ * size_t(num_copies_));
    x_ = make_device_buffer(bytes_of(shape.max_tokens, shape.num_in, shape.weight));
    bias_ = make_device_buffer(size_t(shape.num_out) * 4);
    y_ = make_device_buffer(y_bytes);
    expected_ = make_device_buffer(y_bytes);
    count_ = make_device_buffer(sizeof(unsigned long long));
  }

  ProductPlan tune() {
    ProductPlan plan;
    for (const int64_t tokens : token_buckets(shape_.max_tokens))
      plan.push_back({.tokens = tokens});
    std::vector<std::vector<Candidate>> candidates;
    for (const ProductBucket& bucket : plan) candidates.push_back(candidates_for(bucket.tokens));
    for (const bool wide : {true, false}) {  // the times are those of the second
      fill(wide);
      for (size_t i = 0; i < plan.size(); ++i) compare(plan, i, candidates[i]);
    }
    for (size_t i = 0; i < plan.size(); ++i) choose(plan[i], candidates[i]);
    return plan;
  }

 private:
  Products& products_;
  const ProductShape shape_;
  const ProductOrder order_;
  const LaunchOrder launches_;
  std::vector<std::string>& notes_;
  int num_copies_ = 1;
  size_t copy_bytes_ = 0;
  DeviceBuffer pool_, x_, bias_, y_, expected_, count_;
  const Stream stream_ = make_stream();

  static size_t bytes_of(int64_t rows, int64_t columns, Dtype dtype) {
    return size_t(rows * columns) * size_bytes(dtype);
  }
  static size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

  std::vector<Candidate> candidates_for(int64_t num_tokens) {
    std::vector<Candidate> out;
    for (ProductChoice& choice :
         products_.choices(shape_, num_tokens, order_ == ProductOrder::fast)) {
      out.push_back({.choice = std::move(choice)});
    }
    return out;
  }

  void fill(bool wide) {
    const int64_t weights = int64_t(copy_bytes_ / size_bytes(shape_.weight));
    fill_random(device_view(shape_.weight, pool_.get(), {num_copies_, weights}), 1, wide,
                stream_.get());
    fill_random(device_view(shape_.weight, x_.get(), {shape_.max_tokens, shape_.num_in}), 2, wide,
                stream_.get());
    fill_random(device_view(shape_.weight, bias_.get(), {shape_.num_out}), 3, wide, stream_.get());
  }

  ProductTensors tensors(int64_t num_tokens, int copy, void* y) const {
    return {.weight = device_view(shape_.weight, pool_.get() + size_t(copy) * copy_bytes_,
                                  {shape_.num_out, shape_.num_in}),
            .bias = shape_.has_bias ? bias_.get() : nullptr,
            .x = device_view(shape_.weight, x_.get(), {num_tokens, shape_.num_in}),
            .y = device_view(shape_.out, y, {num_tokens, shape_.num_out})};
  }
  void launch(const ProductChoice& choice, int64_t num_tokens, int copy, void* y,
              LaunchOrder order = LaunchOrder::after_previous) const {
    products_.launch(shape_, choice, tensors(num_tokens, copy, y), stream_.get(), order);
  }

  // --- bits
  // ---------------------------------------------------------------------------------------

  /// Every kernel on as many tokens as the bucket's fullest step, its emptiest and one between.
  void compare(ProductPlan& plan, size_t i, std::vector<Candidate>& candidates) {
    if (order_ == ProductOrder::fast) return;
    const int64_t most = plan[i].tokens, least = i == 0 ? 1 : plan[i - 1].tokens + 1;
    launch(candidates[0].choice, most, 0, expected_.get());
    for (Candidate& candidate : candidates) {
      for (const int64_t tokens : {most, (least + most) / 2, least}) {
        if (!candidate.is_equal) continue;
        candidate.is_equal = differences(candidate.choice, tokens) == 0;
        if (!candidate.is_equal) {
          notes_.push_back(describe(shape_) + ": " + to_text(candidate.choice) +
                           " has other bits at " + std::to_string(tokens) + " tokens");
        }
        plan[i].num_compared += tokens * shape_.num_out;
      }
    }
  }
  uint64_t differences(const ProductChoice& choice, int64_t num_tokens) {
    const size_t bytes = bytes_of(num_tokens, shape_.num_out, shape_.out);
    LORATORY_CUDA_CHECK(cudaMemsetAsync(y_.get(), 0xFF, bytes, stream_.get()));
    LORATORY_CUDA_CHECK(cudaMemsetAsync(count_.get(), 0, sizeof(uint64_t), stream_.get()));
    launch(choice, num_tokens, 0, y_.get());
    auto* const count = reinterpret_cast<unsigned long long*>(count_.get());
    count_differences<<<kNumBlocks, kNumThreads, 0, stream_.get()>>>(
        reinterpret_cast<const uint32_t*>(y_.get()),
        reinterpret_cast<const uint32_t*>(expected_.get()), int64_t(bytes + 3) / 4, bytes % 4 * 8,
        count);
    LORATORY_CUDA_CHECK(cudaGetLastError());
    unsigned long long host = 0;
    LORATORY_CUDA_CHECK(
        cudaMemcpyAsync(&host, count, sizeof host, cudaMemcpyDeviceToHost, stream_.get()));
    LORATORY_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
    return host;
  }

  // --- times
  // --------------------------------------------------------------------------------------

  void choose(ProductBucket& bucket, std::vector<Candidate>& candidates) {
    for (Candidate& candidate : candidates) {
      if (candidate.is_equal) candidate.us = time_us(candidate.choice, bucket.tokens);
    }
    const auto cheapest = [&](ProductUse use) -> const Candidate& {
      return *std::ranges::min_element(
          candidates, {}, [&](const Candidate& c) { return cost(c, bucket.tokens, use); });
    };
    const Candidate& best = cheapest(ProductUse::alone);
    bucket.choice = best.choice;
    bucket.us = best.us;
    bucket.before_lora = cheapest(ProductUse::before_lora).choice;
  }

  double cost(const Candidate& c, int64_t num_tokens, ProductUse use) const {
    if (!overlaps(launches_)) return c.us;
    return us_in_a_layer(shape_, num_tokens, c.choice, use, c.us, products_.num_sms());
  }

  /// The median of a few replays of a graph, per launch.
  double time_us(const ProductChoice& choice, int64_t num_tokens) const {
    const int launches = num_tokens <= 256 ? 20 : num_tokens <= 2048 ? 6 : 2;
    const Graph graph = capture(stream_.get(), [&] {
      for (int i = 0; i < launches; ++i) {
        launch(choice, num_tokens, i % num_copies_, y_.get(), launches_);
      }
    });
    const Event begin = make_timed_event(), end = make_timed_event();
    std::vector<float> times;
    for (int i = 0; i <= kReplays; ++i) {
      LORATORY_CUDA_CHECK(cudaEventRecord(begin.get(), stream_.get()));
      LORATORY_CUDA_CHECK(cudaGraphLaunch(graph.get(), stream_.get()));
      LORATORY_CUDA_CHECK(cudaEventRecord(end.get(), stream_.get()));
      LORATORY_CUDA_CHECK(cudaEventSynchronize(end.get()));
      float ms = 0;
      LORATORY_CUDA_CHECK(cudaEventElapsedTime(&ms, begin.get(), end.get()));
      if (i > 0) times.push_back(ms);
    }
    std::ranges::sort(times);
    return 1e3 * double{times[times.size() / 2]} / launches;
  }
};

}  // namespace

ProductPlan tune_product(Products& products, const ProductShape& shape,
                         const ProductOptions& options, std::vector<std::string>& notes) {
  return Tuner(products, shape, options, notes).tune();
}

void fill_random(const DeviceView& to, uint64_t seed, bool wide, CUstream_st* stream) {
  int64_t count = 1;
  for (int axis = 0; axis < to.num_axes; ++axis) count *= to.shape[size_t(axis)];
  const int widest = !wide ? 0 : to.dtype == Dtype::f16 ? 6 : 20;
  fill_kernel<<<kNumBlocks, kNumThreads, 0, stream>>>(to.data, count, to.dtype, seed << 40, widest);
  LORATORY_CUDA_CHECK(cudaGetLastError());
}

}  // namespace loratory::gpu
