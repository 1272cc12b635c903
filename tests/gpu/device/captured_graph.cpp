#include "captured_graph.hpp"

#include <cuda_runtime_api.h>

#include "gpu/runtime/cuda_check.hpp"

namespace loratory::gpu {

CapturedGraph::CapturedGraph(const std::function<void(CUstream_st*)>& enqueue)
    : graph_(capture(stream_.get(), [&] { enqueue(stream_.get()); })) {}

void CapturedGraph::replay() const {
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  LORATORY_CUDA_CHECK(cudaGraphLaunch(graph_.get(), stream_.get()));
  LORATORY_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
}

}  // namespace loratory::gpu
