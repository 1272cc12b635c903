// Times every variant of the LoRA kernels on the rows of docs/kernels.md, after it has checked each
// against float64 and against the bits of the first one. One graph of chained launches, each with
// weights of its own (cold: more than the L2 holds) or with the same ones (warm).
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "gpu/kernels/lora_linear.hpp"
#include "gpu/layout/device_segments.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "gpu/runtime/device_buffer.hpp"
#include "reference/base/input_error.hpp"

namespace {

using namespace loratory;
using namespace loratory::gpu;
using Bf16 = __nv_bfloat16;

enum class Mapping { equal, zipf };

struct Row {
  std::string name;
  int64_t num_in;
  std::vector<int64_t> num_outs;
  int64_t rank, num_tokens, num_adapters;
  Mapping mapping = Mapping::equal;
};

std::vector<Row> rows() {
  const std::vector<int64_t> square{4096}, qkv{4096, 1024, 1024}, gate_up{12288, 12288};
  return {{"D r64 n32 u4", 4096, square, 64, 32, 4},
          {"D r16 n32 u32", 4096, square, 16, 32, 32},
          {"D r16 n1 u1", 4096, square, 16, 1, 1},
          {"D qkv r64 n32 u4", 4096, qkv, 64, 32, 4},
          {"D gate/up r64 n32 u4", 4096, gate_up, 64, 32, 4},
          {"D K12288 r64 n32 u4", 12288, square, 64, 32, 4},
          {"D r16 n128 u128", 4096, square, 16, 128, 128},
          {"P r64 s512 u4", 4096, square, 64, 512, 4},
          {"P qkv r64 s512 u4", 4096, qkv, 64, 512, 4},
          {"Pz qkv r16 s2048 u8", 4096, qkv, 16, 2048, 8, Mapping::zipf}};
}

__global__ void fill(Bf16* p, int64_t count, uint64_t seed, float scale) {
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < count; i += step) {
    uint64_t z = (uint64_t(i) + seed) * 0x9E3779B97F4A7C15ULL;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ z >> 27) * 0x94D049BB133111EBULL;
    p[i] = __float2bfloat16(scale * (float(uint32_t(z >> 40)) * 0x1p-23F - 1));
  }
}

DeviceBuffer random_numbers(int64_t count, uint64_t seed, float scale) {
  DeviceBuffer out = make_device_buffer(size_t(count) * 2);
  fill<<<1024, 256>>>(reinterpret_cast<Bf16*>(out.get()), count, seed, scale);
  return out;
}

template <typename T>
DeviceBuffer upload(const std::vector<T>& v) {
  DeviceBuffer out = make_device_buffer(v.size() * sizeof(T));
  LORATORY_CUDA_CHECK(
      cudaMemcpy(out.get(), v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  return out;
}

std::vector<float> download(const void* p, int64_t count) {
  std::vector<Bf16> raw(static_cast<size_t>(count));
  LORATORY_CUDA_CHECK(cudaMemcpy(raw.data(), p, raw.size() * 2, cudaMemcpyDeviceToHost));
  std::vector<float> out(raw.size());
  std::transform(raw.begin(), raw.end(), out.begin(), [](Bf16 v) { return __bfloat162float(v); });
  return out;
}

/// The slot of every token.
std::vector<int32_t> slots_of(const Row& row) {
  std::vector<int32_t> out(static_cast<size_t>(row.num_tokens));
  if (row.mapping == Mapping::equal) {
    for (int64_t t = 0; t < row.num_tokens; ++t)
      out[size_t(t)] = int32_t(t * row.num_adapters / row.num_tokens);
    return out;
  }
  double total = 0;
  for (int64_t i = 0; i < row.num_adapters; ++i) total += 1.0 / double(i + 1);
  double sum = 0;
  size_t t = 0;
  for (int64_t i = 0; i < row.num_adapters; ++i) {
    sum += 1.0 / double(i + 1) / total;
    const auto end = size_t(std::lround(sum * double(row.num_tokens)));
    for (; t < end; ++t) out[t] = int32_t(i);
  }
  return out;
}

/// The tensors of a row, with so many copies of the weights that they do not fit the L2.
class Bench {
 public:
  explicit Bench(const Row& row) : row_(row) {
    num_columns_ = std::accumulate(row.num_outs.begin(), row.num_outs.end(), int64_t{0});
    const int64_t copy = row.num_adapters * row.rank *
                         (int64_t(row.num_outs.size()) * row.num_in + num_columns_);
    num_copies_ = std::max<int64_t>(4, (int64_t{200} << 20) / (2 * copy) + 1);
    weights_ = random_numbers(num_copies_ * copy, 1, 0.05F);
    x_ = random_numbers(row.num_tokens * row.num_in, 2, 1);
    y_ = make_device_buffer(size_t(row.num_tokens * num_columns_) * 2);
    ranks_ = upload(std::vector<int32_t>(size_t(row.num_adapters), int32_t(row.rank)));
    scalings_ = upload(std::vector<float>(size_t(row.num_adapters), 0.5F));
    slots_ = slots_of(row);
    for (int64_t i = 0; i < num_copies_; ++i) layers_.emplace_back(desc(i * copy));
  }

  void reset_y() {
    fill<<<1024, 256>>>(reinterpret_cast<Bf16*>(y_.get()), row_.num_tokens * num_columns_, 3, 1);
  }
  DeviceView x() const { return device_view(reference::Dtype::bf16, x_.get(), {row_.num_tokens, row_.num_in}); }
  DeviceView y() const { return device_view(reference::Dtype::bf16, y_.get(), {row_.num_tokens, num_columns_}); }

  void use(const LoraVariant& v) {
    variant_ = v;
    segments_ = std::make_unique<DeviceSegments>(row_.num_tokens, int32_t(row_.num_adapters), v.segment_size());
    segments_->upload(reference::make_batch_layout(slots_, int32_t(row_.num_adapters)), nullptr);
    LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  }
  LoraVariant default_variant() const { return layers_[0].variant_for(x(), y()); }
  void launch(int64_t copy, cudaStream_t stream) const {
    layers_[size_t(copy)].launch(variant_, x(), y(), segments_->view(), stream, LaunchOrder::overlaps_previous);
  }
  std::vector<float> run() {
    reset_y();
    launch(0, nullptr);
    LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
    return download(y_.get(), row_.num_tokens * num_columns_);
  }

  /// Worst error of some results, relative to the largest result.
  double error(const std::vector<float>& got) {
    reset_y();
    const auto base = download(y_.get(), row_.num_tokens * num_columns_);
    const auto x = download(x_.get(), row_.num_tokens * row_.num_in);
    const auto w = download(weights_.get(), total_of_copy());
    double worst = 0, largest = 0;
    for (int64_t t = 0; t < row_.num_tokens; t += 1 + row_.num_tokens / 23) {
      const int64_t slot = slots_[size_t(t)];
      int64_t at = 0, column = 0;
      for (const int64_t n : row_.num_outs) {
        const float* a = w.data() + at + slot * row_.rank * row_.num_in;
        const float* b = w.data() + at + row_.num_adapters * row_.rank * row_.num_in + slot * n * row_.rank;
        std::vector<double> h(size_t(row_.rank), 0.0);
        for (int64_t j = 0; j < row_.rank; ++j)
          for (int64_t k = 0; k < row_.num_in; ++k)
            h[size_t(j)] += double(x[size_t(t * row_.num_in + k)]) * a[j * row_.num_in + k];
        for (int64_t c = 0; c < n; c += 1 + (c % 7) * 11) {
          double d = 0;
          for (int64_t j = 0; j < row_.rank; ++j) d += h[size_t(j)] * b[c * row_.rank + j];
          const auto i = size_t(t * num_columns_ + column + c);
          const double want = base[i] + 0.5 * d;
          worst = std::max(worst, std::abs(got[i] - want));
          largest = std::max(largest, std::abs(want));
        }
        at += row_.num_adapters * row_.rank * (row_.num_in + n);
        column += n;
      }
    }
    return worst / largest;
  }

  /// Microseconds a launch: median of the replays.
  double time(bool cold) {
    cudaStream_t stream;
    LORATORY_CUDA_CHECK(cudaStreamCreate(&stream));
    launch(0, stream);
    LORATORY_CUDA_CHECK(cudaStreamSynchronize(stream));
    const int64_t count = std::max<int64_t>(num_copies_, 100);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    LORATORY_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int64_t i = 0; i < count; ++i) launch(cold ? i % num_copies_ : 0, stream);
    LORATORY_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    LORATORY_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<cudaEvent_t> events(201);
    for (auto& e : events) cudaEventCreate(&e);
    for (int i = 0; i < 5; ++i) cudaGraphLaunch(exec, stream);
    for (size_t i = 0; i + 1 < events.size(); ++i) {
      cudaEventRecord(events[i], stream);
      LORATORY_CUDA_CHECK(cudaGraphLaunch(exec, stream));
    }
    cudaEventRecord(events.back(), stream);
    LORATORY_CUDA_CHECK(cudaStreamSynchronize(stream));
    std::vector<float> ms(events.size() - 1);
    for (size_t i = 0; i < ms.size(); ++i) cudaEventElapsedTime(&ms[i], events[i], events[i + 1]);
    std::nth_element(ms.begin(), ms.begin() + 100, ms.end());
    for (auto& e : events) cudaEventDestroy(e);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    return 1000.0 * ms[100] / double(count);
  }

 private:
  Row row_;
  int64_t num_columns_ = 0, num_copies_ = 0;
  DeviceBuffer weights_, x_, y_, ranks_, scalings_;
  std::vector<int32_t> slots_;
  std::vector<LoraLinear> layers_;
  LoraVariant variant_{};
  std::unique_ptr<DeviceSegments> segments_;

  int64_t total_of_copy() const {
    return row_.num_adapters * row_.rank * (int64_t(row_.num_outs.size()) * row_.num_in + num_columns_);
  }
  LoraLinearDesc desc(int64_t first) const {
    LoraLinearDesc out;
    auto* at = reinterpret_cast<Bf16*>(weights_.get()) + first;
    for (const int64_t n : row_.num_outs) {
      LoraSliceDesc s;
      s.a = device_view(reference::Dtype::bf16, at, {row_.num_adapters, row_.rank, row_.num_in});
      at += row_.num_adapters * row_.rank * row_.num_in;
      s.b = device_view(reference::Dtype::bf16, at, {row_.num_adapters, n, row_.rank});
      at += row_.num_adapters * row_.rank * n;
      s.ranks = reinterpret_cast<const int32_t*>(ranks_.get());
      s.scalings = reinterpret_cast<const float*>(scalings_.get());
      out.slices.push_back(s);
    }
    return out;
  }
};

}  // namespace

int main(int argc, char** argv) {
  const std::string filter = argc > 1 ? argv[1] : "";
  const bool only_default = argc > 2 && std::string(argv[2]) == "default";
  cudaDeviceProp device{};
  cudaGetDeviceProperties(&device, 0);
  std::printf("%s\n%-24s%20s%9s%9s%12s  bits\n", device.name, "row", "variant", "cold us", "warm us", "error");
  for (const Row& row : rows()) {
    if (row.name.find(filter) == std::string::npos) continue;
    Bench bench(row);
    std::vector<float> first;
    for (const LoraVariant& v : lora_variants(LoraStage::linear, {.x = reference::Dtype::bf16,
                                               .weight = reference::Dtype::bf16,
                                               .h = {},
                                               .y = reference::Dtype::bf16})) {
      try {
        const bool is_default = v == bench.default_variant();
        if (only_default && !is_default) continue;
        if (!v.aligned || v.cluster == 1) continue;  // right, not fast
        if (row.num_tokens > 256 && v.token_tiles == 1) continue;
        if (row.num_tokens <= 32 && v.token_tiles > 1) continue;
        bench.use(v);
        const auto got = bench.run();
        if (first.empty()) first = got;
        const double error = bench.error(got);
        const double cold = error < 0.01 ? bench.time(true) : 0, warm = error < 0.01 ? bench.time(false) : 0;
        std::printf("%-24s%20s%9.2f%9.2f%12.2e  %s%s\n", row.name.c_str(), describe(v).c_str(), cold, warm, error,
                   std::memcmp(first.data(), got.data(), got.size() * 4) == 0 ? "same" : "DIFFER",
                   is_default ? "  <- default" : "");
      } catch (const std::exception& e) {
        std::printf("%-24s%20s  %s\n", row.name.c_str(), describe(v).c_str(), e.what());
      }
      std::fflush(stdout);
    }
  }
}
