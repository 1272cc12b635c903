#include "bench/gpu/read_node.hpp"

#include <algorithm>
#include <stdexcept>

#include "gpu/runtime/cuda_check.hpp"

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

// A chunk lies in one span. `never` is null, which the compiler cannot know: the loads must stay.
__global__ void read_node(Spans spans, uint32_t* never) {
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
  if (never != nullptr) *never = sum;
}

}  // namespace

void launch_read_node(std::span<const ReadSpan> spans, CUstream_st* stream) {
  if (spans.size() > size_t(kMaxSpans)) throw std::runtime_error("read_node: too many spans");
  Spans out{};
  for (const ReadSpan& span : spans) {
    const int i = out.num_spans++;
    out.data[i] = static_cast<const uint4*>(span.data);
    out.size[i] = span.num_bytes / 16;
    out.first_chunk[i + 1] = out.first_chunk[i] + (out.size[i] + kChunk - 1) / kChunk;
  }
  constexpr int64_t kMostBlocks = 132 * 8;  // all resident at once on a Hopper GPU
  const auto num_blocks = unsigned(std::min(kMostBlocks, out.first_chunk[out.num_spans]));
  read_node<<<num_blocks, kNumThreads, 0, stream>>>(out, nullptr);
  LORATORY_CUDA_CHECK(cudaGetLastError());
}

}  // namespace loratory::bench
