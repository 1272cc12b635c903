// Time of the kernels around the products of a model, at the sizes of Llama-3.1-8B in bf16. A row
// is one kernel and one number of tokens: one CUDA graph of many launches that overlap, as in a
// step, over buffers that together are larger than L2 where the tokens are many; the median of its
// replays. Beside it the time that cudaMemcpy takes to move as many bytes, measured the same way.
//
//   cmake --build --preset cuda --target model_kernels_bench
//   build/cuda/bench/gpu/model_kernels_bench [results.json]
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/gpu/graph_times.hpp"
#include "gpu/api/lora_layer.hpp"
#include "gpu/layout/device_segments.hpp"
#include "gpu/model/activation.hpp"
#include "gpu/model/embedding.hpp"
#include "gpu/model/embedding_lora.hpp"
#include "gpu/model/lora_bias.hpp"
#include "gpu/model/norm.hpp"
#include "gpu/model/rotary.hpp"
#include "gpu/model/sampler.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "gpu/runtime/device_buffer.hpp"
#include "reference/model/sampling.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;

constexpr int64_t kHidden = 4096, kIntermediate = 14336, kVocab = 128256;
constexpr int32_t kHeads = 32, kKvHeads = 8, kHeadDim = 128, kBlockSize = 16;
constexpr int64_t kQkv = int64_t{kHeads + 2 * kKvHeads} * kHeadDim;
constexpr int kTokens[] = {1, 8, 32, 128, 512, 2048, 8192};
constexpr int kMostTokens = 8192, kMostRows = 256;
constexpr int kReplays = 12, kWarmups = 4;

template <typename T>
DeviceBuffer uploaded(const std::vector<T>& values) {
  DeviceBuffer buffer = make_device_buffer(values.size() * sizeof(T));
  LORATORY_CUDA_CHECK(
      cudaMemcpy(buffer.get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return buffer;
}
template <typename T>
T* as(const DeviceBuffer& buffer) {
  return reinterpret_cast<T*>(buffer.get());
}
DeviceView matrix(const DeviceBuffer& buffer, int64_t rows, int64_t columns,
                  Dtype dtype = Dtype::bf16) {
  return device_view(dtype, buffer.get(), {rows, columns});
}
DeviceBuffer zeros(int64_t bytes) {
  DeviceBuffer out = make_device_buffer(size_t(bytes));
  LORATORY_CUDA_CHECK(cudaMemset(out.get(), 0, size_t(bytes)));
  return out;
}

using Launch = std::function<void(cudaStream_t)>;

// Median microseconds of one launch in a graph of `count`.
double microseconds(const Launch& launch, int count, cudaStream_t stream) {
  launch(stream);
  LORATORY_CUDA_CHECK(cudaStreamSynchronize(stream));
  return bench::median_graph_us({.launches = count, .warmups = kWarmups, .replays = kReplays},
                                stream, [&](int) { launch(stream); });
}

class Bench {
 public:
  explicit Bench(cudaStream_t stream) : stream_(stream) {
    std::vector<int32_t> ids, rows, table;
    for (int32_t t = 0; t < kMostTokens; ++t) {
      ids.push_back(int32_t(int64_t{t} * 7919 % kVocab));
      rows.push_back(0);
      table.push_back(t);
    }
    ids_ = uploaded(ids), rows_ = uploaded(rows), table_ = uploaded(table);
    positions_ = uploaded(table);
    const RopeTables tables = make_rope_tables({}, kHeadDim, kMostTokens);
    cos_ = uploaded(tables.cos), sin_ = uploaded(tables.sin);
  }

  void run() {
    for (const int tokens : kTokens) {
      const double t = tokens;
      row("embed", tokens, 2 * t * kHidden * 2, [&](cudaStream_t s) {
        embed(batch(tokens), {.table = matrix(embedding_, kVocab, kHidden), .x = x(tokens)}, s,
              kOrder);
      });
      row("rms_norm", tokens, 2 * t * kHidden * 2,
          [&](cudaStream_t s) { rms_norm(norm(tokens), s, kOrder); });
      row("add_rms_norm", tokens, 4 * t * kHidden * 2, [&](cudaStream_t s) {
        add_rms_norm(norm(tokens), matrix(delta_, tokens, kHidden), s, kOrder);
      });
      row("rotary", tokens, 2 * t * kQkv * 2,
          [&](cudaStream_t s) { rotary(batch(tokens), rotary_args(tokens), s, kOrder); });
      row("rotary, norms", tokens, 2 * t * kQkv * 2, [&](cudaStream_t s) {
        RotaryArgs args = rotary_args(tokens);
        args.q_norm = args.k_norm = weight_.get();
        rotary(batch(tokens), args, s, kOrder);
      });
      row("silu_mul", tokens, 3 * t * kIntermediate * 2, [&](cudaStream_t s) {
        silu_mul(matrix(gate_up_, tokens, 2 * kIntermediate),
                 matrix(activation_, tokens, kIntermediate), s, kOrder);
      });
    }
    lora();
    sampling();
  }
  std::string json(const char* gpu) const {
    return fmt::format("{{\"gpu\": \"{}\", \"rows\": [{}\n]}}\n", gpu, json_);
  }

 private:
  static constexpr LaunchOrder kOrder = LaunchOrder::overlaps_previous;
  cudaStream_t stream_;
  std::string json_;
  DeviceBuffer ids_, rows_, table_, positions_, cos_, sin_;
  DeviceBuffer embedding_ = zeros(kVocab * kHidden * 2), x_ = zeros(kMostTokens * kHidden * 2),
               delta_ = zeros(kMostTokens * kHidden * 2), y_ = zeros(kMostTokens * kHidden * 2),
               weight_ = zeros(kHidden * 2), qkv_ = zeros(kMostTokens * kQkv * 2),
               k_ = zeros(int64_t{kMostTokens} * kKvHeads * kHeadDim * 2),
               v_ = zeros(int64_t{kMostTokens} * kKvHeads * kHeadDim * 2),
               gate_up_ = zeros(kMostTokens * 2 * kIntermediate * 2),
               activation_ = zeros(kMostTokens * kIntermediate * 2);

  BatchView batch(int tokens) const {
    return {.num_tokens = tokens,
            .num_rows = 1,
            .token_ids = as<int32_t>(ids_),
            .last_sampled = nullptr,
            .positions = as<int32_t>(positions_),
            .token_rows = as<int32_t>(rows_),
            .row_starts = nullptr,
            .contexts = nullptr,
            .block_tables = as<int32_t>(table_),
            .max_blocks = kMostTokens / kBlockSize,
            .block_size = kBlockSize};
  }
  DeviceView x(int tokens) const { return matrix(x_, tokens, kHidden); }
  RmsNormArgs norm(int tokens) const {
    return {.x = x(tokens),
            .weight = device_view(Dtype::bf16, weight_.get(), {kHidden}),
            .y = matrix(y_, tokens, kHidden),
            .eps = 1e-5};
  }
  RotaryArgs rotary_args(int tokens) const {
    return {.qkv = matrix(qkv_, tokens, kQkv),
            .num_heads = kHeads,
            .cos = matrix(cos_, kMostTokens, kHeadDim / 2, Dtype::f32),
            .sin = matrix(sin_, kMostTokens, kHeadDim / 2, Dtype::f32),
            .eps = 1e-6,
            .kv = {.dtype = Dtype::bf16,
                   .k = k_.get(),
                   .v = v_.get(),
                   .num_blocks = kMostTokens / kBlockSize,
                   .kv_heads = kKvHeads,
                   .block_size = kBlockSize,
                   .head_dim = kHeadDim}};
  }

  void row(const char* what, int rows, double bytes, const Launch& launch) {
    const int count = bytes > 1e8 ? 4 : 64;
    const double us = microseconds(launch, count, stream_);
    // A copy reads half of the bytes and writes the other, which has room for nearly all.
    const size_t half = std::min(size_t(bytes / 2), size_t(kMostTokens) * 2 * kIntermediate * 2);
    const double copy_us = microseconds(
        [&](cudaStream_t s) {
          LORATORY_CUDA_CHECK(
              cudaMemcpyAsync(gate_up_.get(), embedding_.get(), half, cudaMemcpyDeviceToDevice, s));
        },
        count, stream_);
    fmt::print("| {} | {} | {:.2f} | {:.0f} | {:.2f} |\n", what, rows, us, bytes / us * 1e-3,
               copy_us);
    std::fflush(stdout);
    json_ += fmt::format(
        "{}\n  {{\"kernel\": \"{}\", \"rows\": {}, \"us\": {:.3f}, \"bytes\": {:.0f}, \"copy_us\": "
        "{:.3f}}}",
        json_.empty() ? "" : ",", what, rows, us, bytes, copy_us);
  }

  // LoRA at both ends of the model, eight adapters of rank 64: the gather of embed_tokens alone and
  // with its expand, lm_head, and the bias of a layer as wide as gate|up.
  void lora() {
    constexpr int64_t kRank = 64;
    constexpr int32_t kSlots = 8;
    const DeviceBuffer a = zeros(kSlots * kRank * kVocab * 2),
                       b = zeros(kSlots * kHidden * kRank * 2), h = zeros(kMostTokens * kRank * 4),
                       logits = zeros(kMostRows * kVocab * 4),
                       ranks = uploaded(std::vector<int32_t>(kSlots, int32_t(kRank))),
                       scalings = uploaded(std::vector<float>(kSlots, 0.5F));
    std::vector<int32_t> of_tokens;
    for (int32_t t = 0; t < kMostTokens; ++t) of_tokens.push_back(t % kSlots);
    const DeviceBuffer slots = uploaded(of_tokens);
    const auto stack = [](const DeviceBuffer& buffer, int64_t rows, int64_t columns) {
      return device_view(Dtype::bf16, buffer.get(), {kSlots, rows, columns});
    };
    const auto layer = [&](LoraOp op, const DeviceView& of_a, const DeviceView& of_b) {
      LoraLayerDesc desc;
      desc.op = op;
      desc.slices = {{of_a, of_b, as<int32_t>(ranks), as<float>(scalings)}};
      desc.workspace = h.get();
      desc.workspace_bytes = kMostTokens * kRank * 4;
      return LoraLayer(std::move(desc));
    };
    const LoraLayer up = layer(LoraOp::expand, {}, stack(b, kHidden, kRank));
    // The same memory the other way around: A [R, hidden] and B [vocab, R].
    const LoraLayer head = layer(LoraOp::linear, stack(b, kRank, kHidden), stack(a, kVocab, kRank));
    for (const int tokens : kTokens) {
      const double t = tokens, adapters = std::min<double>(t, kSlots);
      const DeviceView of_h = device_view(Dtype::f32, h.get(), {1, tokens, kRank});
      const auto shrink = [&](cudaStream_t s) {
        shrink_embedding({.a = stack(a, kRank, kVocab),
                          .ranks = as<int32_t>(ranks),
                          .slots = as<int32_t>(slots),
                          .ids = as<int32_t>(ids_),
                          .h = of_h},
                         s, kOrder);
      };
      row("embedding LoRA r64: gather", tokens, t * kRank * (32 + 4), shrink);
      const LoraTensors tensors{.x = {}, .h = of_h, .y = x(tokens)};
      const auto segments = segments_of(of_tokens, tokens, kSlots, up, tensors);
      row("embedding LoRA r64", tokens,
          t * kRank * (32 + 8) + 4 * t * kHidden + 2 * adapters * kRank * kHidden,
          [&](cudaStream_t s) {
            shrink(s);
            up.launch(tensors, segments->view(), s, kOrder);
          });
      row("lora_bias", tokens, 4 * t * 2 * kIntermediate + 4 * adapters * kIntermediate,
          [&](cudaStream_t s) {
            add_lora_bias({.slices = {{device_view(Dtype::bf16, embedding_.get(),
                                                   {kSlots, 2 * kIntermediate}),
                                       as<int32_t>(ranks)}},
                           .slots = as<int32_t>(slots),
                           .y = matrix(gate_up_, tokens, 2 * kIntermediate)},
                          s, kOrder);
          });
    }
    for (const int rows : {1, 8, 32, 128, 256}) {
      const double adapters = std::min<double>(rows, kSlots);
      const LoraTensors tensors{
          .x = x(rows), .h = {}, .y = matrix(logits, rows, kVocab, Dtype::f32)};
      const auto segments = segments_of(of_tokens, rows, kSlots, head, tensors);
      row("lm_head LoRA r64", rows, double(rows) * kVocab * 8 + 2 * adapters * kRank * kVocab,
          [&](cudaStream_t s) { head.launch(tensors, segments->view(), s, kOrder); });
    }
  }

  // The segments of the first tokens, on the GPU.
  static std::unique_ptr<DeviceSegments> segments_of(const std::vector<int32_t>& slots, int count,
                                                     int32_t num_slots, const LoraLayer& layer,
                                                     const LoraTensors& tensors) {
    auto out = std::make_unique<DeviceSegments>(count, num_slots,
                                                layer.variant_for(tensors).segment_size());
    out->upload(reference::make_batch_layout({slots.data(), size_t(count)}, num_slots), nullptr);
    LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
    return out;
  }

  // Logits as a model's: a sum of uniform numbers, the largest about 12.
  void sampling() {
    std::vector<float> logits;
    uint64_t state = 1;
    for (int64_t i = 0; i < kVocab * kMostRows; ++i) {
      float sum = -4;
      for (int j = 0; j < 4; ++j) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        sum += float(state >> 40) * 0x1p-23F;
      }
      logits.push_back(4 * sum - 4);
    }
    const DeviceBuffer on_gpu = uploaded(logits), tokens = zeros(kMostRows * 4),
                       logprobs = zeros(kMostRows * 8), top = zeros(kMostRows * 20 * 4),
                       top_logprobs = zeros(kMostRows * 20 * 8);
    struct Kind {
      const char* name;
      reference::SamplingParams params;
      int32_t num_top;
    };
    const Kind kinds[] = {
        {"greedy", {}, -1},
        {"greedy, 20 logprobs", {}, 20},
        {"all tokens", {.temperature = 1}, -1},
        {"top_k 50, top_p 0.9", {.temperature = 1, .top_k = 50, .top_p = 0.9}, -1},
        {"top_p 0.9", {.temperature = 1, .top_p = 0.9}, -1}};
    for (const Kind& kind : kinds) {
      for (const int rows : {1, 8, 32, 128, 256}) {
        std::vector<SamplingRow> params;
        for (int i = 0; i < rows; ++i) params.push_back(sampling_row(kind.params, i, kind.num_top));
        const DeviceBuffer rows_on_gpu = uploaded(params);
        row(fmt::format("sample: {}", kind.name).c_str(), rows, double(rows) * kVocab * 4,
            [&](cudaStream_t s) {
              sample({.logits = matrix(on_gpu, rows, kVocab, Dtype::f32),
                      .rows = as<SamplingRow>(rows_on_gpu),
                      .tokens = as<int32_t>(tokens),
                      .logprobs = as<double>(logprobs),
                      .top_tokens = as<int32_t>(top),
                      .top_logprobs = as<double>(top_logprobs),
                      .max_top = 20},
                     s, kOrder);
            });
      }
    }
  }
};

void run(const std::string& file) {
  int device = 0;
  cudaDeviceProp properties{};
  LORATORY_CUDA_CHECK(cudaGetDevice(&device));
  LORATORY_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  fmt::print("{}; bf16, hidden {}, intermediate {}, {} + 2 x {} heads of {}, vocab {}\n\n",
             properties.name, kHidden, kIntermediate, kHeads, kKvHeads, kHeadDim, kVocab);
  fmt::print("| kernel | tokens or rows | us | GB/s | us of a copy |\n");
  fmt::print("| --- | ---: | ---: | ---: | ---: |\n");
  cudaStream_t stream = nullptr;
  LORATORY_CUDA_CHECK(cudaStreamCreate(&stream));
  Bench bench(stream);
  bench.run();
  if (!file.empty()) std::ofstream(file) << bench.json(properties.name);
  LORATORY_CUDA_CHECK(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace loratory::gpu

int main(int argc, char** argv) {
  try {
    loratory::gpu::run(argc > 1 ? argv[1] : "");
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "model_kernels_bench: {}\n", error.what());
    return 1;
  }
}
