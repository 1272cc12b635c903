#include "bench/gpu/graph_times.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "gpu/runtime/cuda_check.hpp"

namespace loratory::bench {
namespace {

cudaGraphExec_t captured(int launches, CUstream_st* stream,
                         const std::function<void(int)>& enqueue) {
  LORATORY_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < launches; ++i) enqueue(i);
  cudaGraph_t graph = nullptr;
  LORATORY_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t out = nullptr;
  LORATORY_CUDA_CHECK(cudaGraphInstantiate(&out, graph, 0));
  LORATORY_CUDA_CHECK(cudaGraphDestroy(graph));
  return out;
}

}  // namespace

std::vector<double> graph_times_us(const GraphRuns& runs, CUstream_st* stream,
                                   const std::function<void(int)>& enqueue) {
  const cudaGraphExec_t graph = captured(runs.launches, stream, enqueue);
  cudaEvent_t begin = nullptr, end = nullptr;
  LORATORY_CUDA_CHECK(cudaEventCreate(&begin));
  LORATORY_CUDA_CHECK(cudaEventCreate(&end));
  std::vector<double> times;
  for (int i = 0; i < runs.warmups + runs.replays; ++i) {
    LORATORY_CUDA_CHECK(cudaEventRecord(begin, stream));
    LORATORY_CUDA_CHECK(cudaGraphLaunch(graph, stream));
    LORATORY_CUDA_CHECK(cudaEventRecord(end, stream));
    LORATORY_CUDA_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    LORATORY_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i >= runs.warmups) times.push_back(1e3 * double{ms} / runs.launches);
  }
  LORATORY_CUDA_CHECK(cudaEventDestroy(begin));
  LORATORY_CUDA_CHECK(cudaEventDestroy(end));
  LORATORY_CUDA_CHECK(cudaGraphExecDestroy(graph));
  std::ranges::sort(times);
  return times;
}

double median_graph_us(const GraphRuns& runs, CUstream_st* stream,
                       const std::function<void(int)>& enqueue) {
  const std::vector<double> times = graph_times_us(runs, stream, enqueue);
  return times[times.size() / 2];
}

}  // namespace loratory::bench
