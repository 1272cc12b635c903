// Time of DeviceSegmentBuilder::build, which a step makes once: one CUDA graph of many builds in
// one stream, replayed; the median time of a build.
//
//   cmake --build --preset cuda --target segment_builder_bench
//   build/cuda/bench/gpu/segment_builder_bench
//
// Tokens belong to the adapters in turns, the order that moves most of them. Segment sizes are
// those of the kernels: 8, 32 and 64.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <vector>

#include "bench/gpu/graph_times.hpp"
#include "gpu/layout/device_segment_builder.hpp"
#include "gpu/runtime/cuda_check.hpp"

namespace loratory::gpu {
namespace {

constexpr int32_t kSegmentSizes[] = {8, 32, 64};
constexpr int kBuilds = 64, kReplays = 200;
constexpr int kWarmups = 500;  // replays, 0.1 s or more: the clocks rise

struct Row {
  int64_t num_tokens;
  int32_t max_loras;
};
constexpr Row kRows[] = {{1, 1},    {32, 4},   {32, 32},    {128, 128},  {256, 256},
                         {512, 4},  {1024, 8}, {1025, 8},   {2048, 8},   {2048, 1000},
                         {4096, 4}, {8192, 8}, {8192, 256}, {8192, 1900}};

// The slots of a step's tokens in device memory.
DeviceBuffer mapping(const Row& row) {
  std::vector<int32_t> slots;
  for (int64_t t = 0; t < row.num_tokens; ++t) slots.push_back(int32_t(t % row.max_loras));
  DeviceBuffer device = make_device_buffer(slots.size() * sizeof(int32_t));
  LORATORY_CUDA_CHECK(cudaMemcpy(device.get(), slots.data(), slots.size() * sizeof(int32_t),
                                 cudaMemcpyHostToDevice));
  return device;
}

void measure(const Row& row, cudaStream_t stream) {
  const DeviceSegmentBuilder builder(row.num_tokens, row.max_loras, kSegmentSizes);
  const DeviceBuffer slots = mapping(row);
  const auto build = [&](int) {
    builder.build(reinterpret_cast<const int32_t*>(slots.get()), row.num_tokens, stream);
  };
  const std::vector<double> times = bench::graph_times_us(
      {.launches = kBuilds, .warmups = kWarmups, .replays = kReplays}, stream, build);
  fmt::print("| {} | {} | {:.2f} | {:.2f} | {:.2f} |\n", row.num_tokens, row.max_loras,
             times[times.size() / 2], times[times.size() / 10], times[times.size() * 9 / 10]);
}

void run() {
  int device = 0;
  cudaDeviceProp properties{};
  LORATORY_CUDA_CHECK(cudaGetDevice(&device));
  LORATORY_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  fmt::print("{}, us of a build in a CUDA graph of {}, {} replays\n\n", properties.name, kBuilds,
             kReplays);
  fmt::print("| tokens | adapters | median | p10 | p90 |\n| ---: | ---: | ---: | ---: | ---: |\n");
  cudaStream_t stream = nullptr;
  LORATORY_CUDA_CHECK(cudaStreamCreate(&stream));
  for (const Row& row : kRows) measure(row, stream);
  LORATORY_CUDA_CHECK(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace loratory::gpu

int main() {
  try {
    loratory::gpu::run();
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "segment_builder_bench: {}\n", error.what());
    return 1;
  }
}
