// Time of paged attention in one layer, beside a node that reads the same bytes (decode) and in
// TFLOP/s (prefill; causal, so half of the pairs). Each row is one CUDA graph of several launches,
// replayed; the median.
//
//   cmake --build --preset cuda --target attention_bench
//   build/cuda/bench/gpu/attention_bench [part of the rows' names]
//
// Layers share one set of keys and values where they are larger than L2, and rotate through several
// where they are not. Blocks of 16 tokens lie in random order, or in
// that of their positions.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "bench/gpu/graph_times.hpp"
#include "bench/gpu/read_node.hpp"
#include "gpu/attention/paged_attention.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "gpu/runtime/device_buffer.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;

constexpr int kLaunches = 8, kReplays = 30, kWarmups = 10;
constexpr int32_t kBlockSize = 16;
constexpr int64_t kLargerThanL2 = int64_t{200} << 20;

struct Row {
  int32_t context, num_tokens;
};
struct Case {
  std::string name;
  int32_t num_heads, kv_heads, head_dim;
  std::vector<Row> rows;
  bool is_ordered = false;  // blocks
};

std::vector<Row> equal_rows(int count, Row row) { return std::vector<Row>(size_t(count), row); }
std::vector<Row> mixed_rows() {
  std::vector<Row> out;
  for (int i = 0; i < 31; ++i) out.push_back({1 + i * 100, 1});
  out.push_back({32768, 1});
  return out;
}

std::vector<Case> cases() {
  return {{"decode 1 x 256", 32, 8, 128, equal_rows(1, {256, 1})},
          {"decode 1 x 1024", 32, 8, 128, equal_rows(1, {1024, 1})},
          {"decode 1 x 4096", 32, 8, 128, equal_rows(1, {4096, 1})},
          {"decode 1 x 32768", 32, 8, 128, equal_rows(1, {32768, 1})},
          {"decode 32 x 1024", 32, 8, 128, equal_rows(32, {1024, 1})},
          {"decode 32 x 4096", 32, 8, 128, equal_rows(32, {4096, 1})},
          {"decode 32 x 4096, blocks in order", 32, 8, 128, equal_rows(32, {4096, 1}), true},
          {"decode 128 x 1024", 32, 8, 128, equal_rows(128, {1024, 1})},
          {"decode 128 x 1040", 32, 8, 128, equal_rows(128, {1040, 1})},
          {"decode 128 x 2048", 32, 8, 128, equal_rows(128, {2048, 1})},
          {"decode 31 x 1 to 3001, 1 x 32768", 32, 8, 128, mixed_rows()},
          {"decode 32 x 4096, head_dim 64", 32, 8, 64, equal_rows(32, {4096, 1})},
          {"prefill 2048", 32, 8, 128, equal_rows(1, {2048, 2048})},
          {"prefill 8192", 32, 8, 128, equal_rows(1, {8192, 8192})},
          {"prefill 8192, 32 kv heads", 32, 32, 128, equal_rows(1, {8192, 8192})},
          {"prefill 8192, head_dim 64", 32, 8, 64, equal_rows(1, {8192, 8192})},
          {"prefill 512 behind 7680", 32, 8, 128, equal_rows(1, {8192, 512})},
          {"prefill 8 x 1024", 32, 8, 128, equal_rows(8, {1024, 1024})}};
}

// bf16 numbers around 0, different everywhere within 16 MiB.
DeviceBuffer random_numbers(int64_t bytes) {
  static const std::vector<uint16_t> numbers = [] {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> out(size_t(8) << 20);
    for (uint16_t& number : out) number = uint16_t(encode(Dtype::bf16, double{normal(random)}));
    return out;
  }();
  DeviceBuffer out = make_device_buffer(size_t(bytes));
  const auto whole = int64_t(numbers.size() * 2);
  for (int64_t at = 0; at < bytes; at += whole) {
    LORATORY_CUDA_CHECK(cudaMemcpy(out.get() + at, numbers.data(),
                                   size_t(std::min(whole, bytes - at)), cudaMemcpyHostToDevice));
  }
  return out;
}

DeviceBuffer upload(const std::vector<int32_t>& values) {
  DeviceBuffer out = make_device_buffer(values.size() * 4);
  LORATORY_CUDA_CHECK(
      cudaMemcpy(out.get(), values.data(), values.size() * 4, cudaMemcpyHostToDevice));
  return out;
}
const int32_t* ints(const DeviceBuffer& buffer) {
  return reinterpret_cast<const int32_t*>(buffer.get());
}

class Bench {
 public:
  explicit Bench(const Case& c) : c_(c), plan_(make_plan()) {
    const int64_t columns = int64_t{c.num_heads} * c.head_dim;
    q_ = random_numbers(num_tokens_ * columns * 2);
    out_ = make_device_buffer(size_t(num_tokens_ * columns * 2));
    workspace_ = make_device_buffer(size_t(plan_.workspace_bytes()));
    kv_bytes_ = num_blocks_ * kBlockSize * c.kv_heads * c.head_dim * 2;
    for (int64_t all = 0; all < kLargerThanL2; all += 2 * kv_bytes_) {
      k_.push_back(random_numbers(kv_bytes_));
      v_.push_back(random_numbers(kv_bytes_));
      if (is_prefill()) break;
    }
  }

  void report(cudaStream_t stream) {
    plan_.build_work(batch(), workspace_.get(), stream);
    const double work_us =
        median_us(stream, [&](int) { plan_.build_work(batch(), workspace_.get(), stream); });
    const double us = median_us(stream, [&](int i) { launch(i, stream); });
    if (is_prefill()) {
      fmt::print("| {} | {:.1f} | {:.0f} TFLOP/s | | {:.1f} |\n", c_.name, us,
                 num_operations() / us * 1e-6, work_us);
    } else {
      const double read_us = median_us(stream, [&](int i) { read(i, stream); });
      fmt::print("| {} | {:.1f} | {:.0f} GB/s | {:.1f} | {:.1f} |\n", c_.name, us,
                 double(2 * kv_bytes_) / us * 1e-3, read_us, work_us);
    }
    std::fflush(stdout);
  }

 private:
  const Case& c_;
  int64_t num_tokens_ = 0, num_blocks_ = 0, kv_bytes_ = 0;
  int32_t max_blocks_ = 0, most_tokens_ = 1;
  DeviceBuffer q_, out_, workspace_, row_starts_, contexts_, token_rows_, tables_;
  std::vector<DeviceBuffer> k_, v_;
  AttentionPlan plan_;

  bool is_prefill() const { return most_tokens_ > 1; }

  AttentionPlan make_plan() {
    std::vector<int32_t> starts{0}, contexts, token_rows, tables;
    int32_t longest = 0;
    for (const Row& row : c_.rows) longest = std::max(longest, row.context);
    max_blocks_ = (longest + kBlockSize - 1) / kBlockSize;
    for (const Row& row : c_.rows) {
      starts.push_back(starts.back() + row.num_tokens);
      contexts.push_back(row.context);
      token_rows.insert(token_rows.end(), size_t(row.num_tokens), int32_t(contexts.size()) - 1);
      most_tokens_ = std::max(most_tokens_, row.num_tokens);
      num_blocks_ += (row.context + kBlockSize - 1) / kBlockSize;
    }
    num_tokens_ = starts.back();
    std::vector<int32_t> blocks(static_cast<size_t>(num_blocks_));
    std::iota(blocks.begin(), blocks.end(), 0);
    std::mt19937 random(2);
    if (!c_.is_ordered) std::ranges::shuffle(blocks, random);
    size_t next = 0;
    for (const Row& row : c_.rows) {
      for (int32_t i = 0; i < max_blocks_; ++i) {
        const bool exists = i * kBlockSize < row.context;
        tables.push_back(exists ? blocks[next] : -1);
        if (exists) ++next;
      }
    }
    row_starts_ = upload(starts), contexts_ = upload(contexts);
    token_rows_ = upload(token_rows), tables_ = upload(tables);
    return {
        {.num_heads = c_.num_heads,
         .kv_heads = c_.kv_heads,
         .head_dim = c_.head_dim,
         .block_size = kBlockSize,
         .scale = 1 / std::sqrt(float(c_.head_dim))},
        {.max_tokens = num_tokens_, .max_rows = int32_t(c_.rows.size()), .max_context = longest}};
  }

  BatchView batch() const {
    return {.num_tokens = int32_t(num_tokens_),
            .num_rows = int32_t(c_.rows.size()),
            .token_rows = ints(token_rows_),
            .row_starts = ints(row_starts_),
            .contexts = ints(contexts_),
            .block_tables = ints(tables_),
            .max_blocks = max_blocks_,
            .block_size = kBlockSize};
  }

  void launch(int i, cudaStream_t stream) const {
    const int64_t columns = int64_t{c_.num_heads} * c_.head_dim;
    const size_t set = size_t(i) % k_.size();
    plan_.launch({.q = device_view(Dtype::bf16, q_.get(), {num_tokens_, columns}),
                  .out = device_view(Dtype::bf16, out_.get(), {num_tokens_, columns}),
                  .kv = {.k = k_[set].get(),
                         .v = v_[set].get(),
                         .num_blocks = num_blocks_,
                         .kv_heads = c_.kv_heads,
                         .block_size = kBlockSize,
                         .head_dim = c_.head_dim}},
                 batch(), most_tokens_, workspace_.get(), stream);
  }

  void read(int i, cudaStream_t stream) const {
    const size_t set = size_t(i) % k_.size();
    const bench::ReadSpan spans[] = {{k_[set].get(), kv_bytes_}, {v_[set].get(), kv_bytes_}};
    bench::launch_read_node(spans, stream);
  }

  double num_operations() const {
    double pairs = 0;
    for (const Row& row : c_.rows) {
      const double before = row.context - row.num_tokens, n = row.num_tokens;
      pairs += before * n + n * n / 2;
    }
    return 4 * pairs * c_.num_heads * c_.head_dim;
  }

  static double median_us(cudaStream_t stream, const std::function<void(int)>& enqueue) {
    return bench::median_graph_us({.launches = kLaunches, .warmups = kWarmups, .replays = kReplays},
                                  stream, enqueue);
  }
};

void run(std::string_view part) {
  cudaDeviceProp properties{};
  LORATORY_CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
  fmt::print("{}, bf16, us of a layer in a CUDA graph of {}, {} replays\n\n", properties.name,
             kLaunches, kReplays);
  fmt::print("| rows | us | rate | read of the same bytes, us | build_work, us |\n");
  fmt::print("| --- | ---: | ---: | ---: | ---: |\n");
  cudaStream_t stream = nullptr;
  LORATORY_CUDA_CHECK(cudaStreamCreate(&stream));
  for (const Case& c : cases()) {
    if (c.name.find(part) != std::string::npos) Bench(c).report(stream);
  }
  LORATORY_CUDA_CHECK(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace loratory::gpu

int main(int argc, char** argv) {
  try {
    loratory::gpu::run(argc > 1 ? argv[1] : "");
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "attention_bench: {}\n", error.what());
    return 1;
  }
}
