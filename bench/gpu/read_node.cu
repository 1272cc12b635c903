#include "bench/gpu/read_node.hpp"

#include <algorithm>
#include <stdexcept>

#include "gpu/kernels/launch_kernel.cuh"
#include "gpu/kernels/ptx.cuh"

namespace loratory::bench {
namespace {

constexpr int kMaxSpans = 8;
constexpr int kNumThreads = 256;
constexpr int kLoads = 4;  // of 16 bytes, in flight at a time in a thread
constexpr int kChunk = kNumThreads * kLoads;

struct Spans {
  const uint4* data[kMaxSpans];
  int64_t size[kMaxSpans];  // in 16 bytes
  int64_t first_chunk[kMaxSpans + 1];
  int num_spans;
};

// A chunk lies in one span.
__device__ uint32_t read_all(const Spans& spans) {
  uint32_t sum = 0;
  int span = 0;
  for (int64_t chunk = blockIdx.x; chunk < spans.first_chunk[spans.num_spans]; chunk += gridDim.x) {
    while (chunk >= spans.first_chunk[span + 1]) ++span;
    const int64_t begin = (chunk - spans.first_chunk[span]) * kChunk + threadIdx.x;
    uint4 loaded[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int64_t at = begin + i * kNumThreads;
      loaded[i] = at < spans.size[span] ? __ldg(spans.data[span] + at) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      sum ^= loaded[i].x ^ loaded[i].y ^ loaded[i].z ^ loaded[i].w;
    }
  }
  return sum;
}

// `never` is null, which the compiler cannot know: the loads must stay.
__global__ void read_node(Spans spans, uint32_t* never) {
  const uint32_t sum = read_all(spans);
  if (never != nullptr) *never = sum;
}
__global__ void __launch_bounds__(kNumThreads)
    read_stage(Spans early, Spans late, uint32_t* never) {
  gpu::launch_dependents();
  uint32_t sum = read_all(early);
  gpu::wait_for_prior_grid();
  sum ^= read_all(late);
  if (never != nullptr) *never = sum;
}

Spans laid_out(std::span<const ReadSpan> spans) {
  if (spans.size() > size_t(kMaxSpans)) throw std::runtime_error("read_node: too many spans");
  Spans out{};
  for (const ReadSpan& span : spans) {
    const int i = out.num_spans++;
    out.data[i] = static_cast<const uint4*>(span.data);
    out.size[i] = span.num_bytes / 16;
    out.first_chunk[i + 1] = out.first_chunk[i] + (out.size[i] + kChunk - 1) / kChunk;
  }
  return out;
}

unsigned blocks_of(const Spans& spans, int most_of_sm) {
  const int64_t chunks = std::max<int64_t>(1, spans.first_chunk[spans.num_spans]);
  return unsigned(std::min(chunks, int64_t{132} * most_of_sm));
}

}  // namespace

void launch_read_node(std::span<const ReadSpan> spans, CUstream_st* stream) {
  const Spans all = laid_out(spans);
  constexpr int kMostOfSm = 8;  // all resident at once on a Hopper GPU
  read_node<<<blocks_of(all, kMostOfSm), kNumThreads, 0, stream>>>(all, nullptr);
  LORATORY_CUDA_CHECK(cudaGetLastError());
}

void launch_read_stage(std::span<const ReadSpan> early, std::span<const ReadSpan> late,
                       CUstream_st* stream) {
  const Spans first = laid_out(early);
  constexpr int kMostOfSm = 4;  // the next launch fits beside it
  gpu::launch_kernel(&read_stage, {.grid = blocks_of(first, kMostOfSm), .block = kNumThreads},
                     stream, gpu::LaunchOrder::overlaps_previous, first, laid_out(late),
                     static_cast<uint32_t*>(nullptr));
}

}  // namespace loratory::bench
