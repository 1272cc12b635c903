#include "bench/gpu/graph_times.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "gpu/runtime/cuda_check.hpp"
#include "gpu/runtime/cuda_handles.hpp"

namespace loratory::bench {

std::vector<double> graph_times_us(const GraphRuns& runs, CUstream_st* stream,
                                   const std::function<void(int)>& enqueue) {
  const gpu::Graph graph = gpu::capture(stream, [&] {
    for (int i = 0; i < runs.launches; ++i) enqueue(i);
  });
  const gpu::Event begin = gpu::make_timed_event(), end = gpu::make_timed_event();
  std::vector<double> times;
  for (int i = 0; i < runs.warmups + runs.replays; ++i) {
    LORATORY_CUDA_CHECK(cudaEventRecord(begin.get(), stream));
    LORATORY_CUDA_CHECK(cudaGraphLaunch(graph.get(), stream));
    LORATORY_CUDA_CHECK(cudaEventRecord(end.get(), stream));
    LORATORY_CUDA_CHECK(cudaEventSynchronize(end.get()));
    float ms = 0;
    LORATORY_CUDA_CHECK(cudaEventElapsedTime(&ms, begin.get(), end.get()));
    if (i >= runs.warmups) times.push_back(1e3 * double{ms} / runs.launches);
  }
  std::ranges::sort(times);
  return times;
}

double median_graph_us(const GraphRuns& runs, CUstream_st* stream,
                       const std::function<void(int)>& enqueue) {
  const std::vector<double> times = graph_times_us(runs, stream, enqueue);
  return times[times.size() / 2];
}

}  // namespace loratory::bench
