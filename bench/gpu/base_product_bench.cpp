// Products of the base model: the own kernel, cuBLASLt without and with split-K, and a kernel that
// only reads the weights, in one run.
//
//   cmake --build --preset cuda --target base_product_bench
//   build/cuda/bench/gpu/base_product_bench [--out FILE.json] [--commit ID]
//
// Each figure: one CUDA graph of many launches, each on another copy of the weights, so that they
// come from HBM; the median replay. A kernel of cuBLASLt counts as exact if it has the bits of the
// own kernel here, on normal data and on a wide range of exponents; "fast" is the best of all.
// "overlapped": our launches start while the previous one ends.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "bench/gpu/graph_times.hpp"
#include "bench/gpu/read_node.hpp"
#include "gpu/product/base_product.hpp"
#include "gpu/product/product_tuner.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "gpu/runtime/device_buffer.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;

constexpr size_t kPoolBytes = size_t(384) << 20;  // of weights, more than any L2 keeps
constexpr double kNever = std::numeric_limits<double>::infinity();

struct Row {
  const char* what;
  ProductShape shape;
  std::vector<int64_t> tokens;
};

std::vector<Row> rows() {
  const std::vector<int64_t> all{1, 8, 16, 32, 64, 128, 256, 2048, 8192}, few{1, 8, 32, 64, 128};
  const auto shape = [](int64_t num_out, int64_t num_in, int64_t most, Dtype out = Dtype::bf16) {
    return ProductShape{.num_out = num_out, .num_in = num_in, .max_tokens = most, .out = out};
  };
  return {{"8B qkv", shape(6144, 4096, 8192), all},
          {"8B o", shape(4096, 4096, 8192), all},
          {"8B gate|up", shape(28672, 4096, 8192), all},
          {"8B down", shape(4096, 14336, 8192), all},
          {"8B lm_head", shape(128256, 4096, 128, Dtype::f32), few},
          {"4B down", shape(2560, 9728, 8192), all}};
}
/// How often a layer of Llama-3.1-8B has each row, in steps of all its 32 layers.
constexpr int kPerStep[] = {32, 32, 32, 32, 1, 0};

struct Timed {
  double us = kNever;
  std::string kernel{};
};

class Bench {
 public:
  Bench(Products& products, const Row& row) : products_(products), shape_(row.shape) {
    weight_bytes_ = size_t(shape_.num_out * shape_.num_in * 2);
    num_copies_ = int(std::max<size_t>(1, kPoolBytes / weight_bytes_));
    pool_ = make_device_buffer(weight_bytes_ * size_t(num_copies_));
    x_ = make_device_buffer(size_t(shape_.max_tokens * shape_.num_in * 2));
    y_ = make_device_buffer(y_bytes(shape_.max_tokens));
    LORATORY_CUDA_CHECK(cudaStreamCreate(&stream_));
    fill(false);
  }
  ~Bench() { cudaStreamDestroy(stream_); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  nlohmann::ordered_json measure(int64_t tokens) {
    const std::vector<ProductChoice> all = products_.choices(shape_, tokens, true);
    const std::vector<ProductChoice> unsplit = products_.choices(shape_, tokens, false);
    Timed ours, exact, fast;
    for (const ProductChoice& choice : all) {
      const Timed timed{time_us(choice, tokens, 4), to_text(choice)};
      const bool is_ours = choice.kernel == ProductKernel::skinny;
      if (is_ours) keep(ours, timed);
      if (!is_ours) keep(fast, timed);
    }
    int64_t num_other_bits = 0;
    for (const ProductChoice& choice : unsplit) {
      if (choice.kernel == ProductKernel::skinny) continue;
      if (has_our_bits(unsplit[0], choice, tokens))
        keep(exact, {time_us(choice, tokens, 4), to_text(choice)});
      else
        ++num_other_bits;
    }
    for (Timed* best : {&ours, &exact, &fast}) again(*best, tokens);
    const double overlapped =
        time_us(choice_of(ours), tokens, replays_for(tokens), LaunchOrder::overlaps_previous);
    const double read = read_us();
    const double ours_or_exact = std::min(ours.us, exact.us);
    return {{"num_out", shape_.num_out},
            {"num_in", shape_.num_in},
            {"tokens", tokens},
            {"read_us", read},
            {"ours_us", ours.us},
            {"overlapped_us", overlapped},
            {"exact_us", exact.us},
            {"fast_us", fast.us},
            {"default_over_fast", ours_or_exact / std::min(ours_or_exact, fast.us)},
            {"read_over_ours", read / ours.us},
            {"ours", ours.kernel},
            {"exact", exact.kernel},
            {"fast", fast.kernel},
            {"algorithms_with_other_bits", num_other_bits}};
  }

 private:
  Products& products_;
  ProductShape shape_;
  size_t weight_bytes_ = 0;
  int num_copies_ = 1;
  DeviceBuffer pool_, x_, y_;
  cudaStream_t stream_ = nullptr;

  size_t y_bytes(int64_t tokens) const {
    return size_t(tokens * shape_.num_out) * size_bytes(shape_.out);
  }
  static void keep(Timed& best, const Timed& other) {
    if (other.us < best.us) best = other;
  }
  ProductChoice choice_of(const Timed& timed) const { return choice_from_text(timed.kernel, ""); }
  void again(Timed& best, int64_t tokens) const {
    if (best.us < kNever) best.us = time_us(choice_of(best), tokens, replays_for(tokens));
  }

  void fill(bool wide) {
    const auto count = int64_t(weight_bytes_ / 2);
    fill_random(device_view(Dtype::bf16, pool_.get(), {num_copies_, count}), 1, wide, stream_);
    fill_random(device_view(Dtype::bf16, x_.get(), {shape_.max_tokens, shape_.num_in}), 2, wide,
                stream_);
  }

  void launch(const ProductChoice& choice, int64_t tokens, int copy, LaunchOrder order) const {
    const ProductTensors tensors{
        .weight = device_view(Dtype::bf16, pool_.get() + size_t(copy) * weight_bytes_,
                              {shape_.num_out, shape_.num_in}),
        .x = device_view(Dtype::bf16, x_.get(), {tokens, shape_.num_in}),
        .y = device_view(shape_.out, y_.get(), {tokens, shape_.num_out})};
    products_.launch(shape_, choice, tensors, stream_, order);
  }

  std::vector<std::byte> result(const ProductChoice& choice, int64_t tokens) const {
    std::vector<std::byte> host(y_bytes(tokens));
    LORATORY_CUDA_CHECK(cudaMemsetAsync(y_.get(), 0xFF, host.size(), stream_));
    launch(choice, tokens, 0, LaunchOrder::after_previous);
    LORATORY_CUDA_CHECK(cudaStreamSynchronize(stream_));
    LORATORY_CUDA_CHECK(cudaMemcpy(host.data(), y_.get(), host.size(), cudaMemcpyDeviceToHost));
    return host;
  }
  bool has_our_bits(const ProductChoice& ours, const ProductChoice& other, int64_t tokens) {
    if (tokens > 256) return true;  // plans compare these on the device
    return result(ours, tokens) == result(other, tokens);
  }

  double time_graph(int launches, int replays, const std::function<void(int)>& one) const {
    return bench::median_graph_us({.launches = launches, .replays = replays}, stream_, one);
  }
  static int replays_for(int64_t tokens) { return tokens <= 256 ? 20 : 5; }
  int launches_for(int64_t tokens) const {
    const size_t flops = size_t(tokens) * weight_bytes_;
    return flops > (size_t(1) << 36)
               ? 3
               : int(std::clamp<size_t>((size_t(2) << 30) / weight_bytes_, 3, 24));
  }
  double time_us(const ProductChoice& choice, int64_t tokens, int replays,
                 LaunchOrder order = LaunchOrder::after_previous) const {
    return time_graph(launches_for(tokens), replays,
                      [&](int i) { launch(choice, tokens, i % num_copies_, order); });
  }
  double read_us() const {
    return time_graph(launches_for(1), 20, [&](int i) {
      const bench::ReadSpan span{pool_.get() + size_t(i % num_copies_) * weight_bytes_,
                                 int64_t(weight_bytes_)};
      bench::launch_read_node({&span, 1}, stream_);
    });
  }
};

/// Sums of the products of a step of Llama-3.1-8B.
nlohmann::ordered_json step_of(const nlohmann::ordered_json& measured, int64_t tokens) {
  double ours = 0, fast = 0, read = 0;
  for (const auto& row : measured) {
    if (row["tokens"] != tokens) continue;
    const int times = kPerStep[row["row"].get<size_t>()];
    const double chosen = std::min(row["ours_us"].get<double>(), row["exact_us"].get<double>());
    ours += times * chosen;
    fast += times * std::min(chosen, row["fast_us"].get<double>());
    read += times * row["read_us"].get<double>();
  }
  return {{"tokens", tokens},
          {"default_us", ours},
          {"fast_us", fast},
          {"read_us", read},
          {"default_over_fast", ours / fast}};
}

void print_row(const char* what, const nlohmann::ordered_json& r) {
  fmt::print(
      "| {} | {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.2f} | {:.3f} | {} | {} |\n",
      what, r["tokens"].get<int64_t>(), r["read_us"].get<double>(), r["ours_us"].get<double>(),
      r["overlapped_us"].get<double>(), r["exact_us"].get<double>(), r["fast_us"].get<double>(),
      r["read_over_ours"].get<double>(), r["default_over_fast"].get<double>(),
      r["ours"].get<std::string>(), r["algorithms_with_other_bits"].get<int64_t>());
  std::fflush(stdout);
}

void run(const std::string& out, const std::string& commit) {
  Products products({});
  const ProductKey& key = products.key();
  fmt::print("{}, {}, cuBLASLt {}; us\n\n", key.gpu, key.driver, key.cublaslt);
  fmt::print(
      "| product | tokens | read | ours | overlapped | exact | fast | read / ours | default / fast "
      "| "
      "ours is | other bits |\n|");
  for (int i = 0; i < 11; ++i) fmt::print(" ---: |");
  fmt::print("\n");
  nlohmann::ordered_json measured = nlohmann::ordered_json::array();
  const std::vector<Row> all = rows();
  for (size_t i = 0; i < all.size(); ++i) {
    Bench bench(products, all[i]);
    for (const int64_t tokens : all[i].tokens) {
      nlohmann::ordered_json row = bench.measure(tokens);
      print_row(all[i].what, row);
      row["product"] = all[i].what;
      row["row"] = i;
      measured.push_back(std::move(row));
    }
  }
  nlohmann::ordered_json steps = nlohmann::ordered_json::array();
  for (const int64_t tokens : {1, 8, 32, 64, 128, 2048, 8192}) {
    steps.push_back(step_of(measured, tokens));
    fmt::print("step of {}: {}\n", tokens, steps.back().dump());
  }
  if (out.empty()) return;
  std::ofstream(out) << nlohmann::ordered_json{{"gpu", key.gpu},
                                               {"driver", key.driver},
                                               {"cublaslt", key.cublaslt},
                                               {"commit", commit},
                                               {"rows", measured},
                                               {"llama_8b_steps", steps}}
                            .dump(1)
                     << "\n";
}

}  // namespace
}  // namespace loratory::gpu

int main(int argc, char** argv) {
  std::string out, commit;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string_view(argv[i]) == "--out") out = argv[i + 1];
    if (std::string_view(argv[i]) == "--commit") commit = argv[i + 1];
  }
  try {
    loratory::gpu::run(out, commit);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "base_product_bench: {}\n", error.what());
    return 1;
  }
}
