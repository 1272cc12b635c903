#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "gpu/runtime/cuda_check.hpp"

namespace loratory::gpu {

struct StreamFree {
  void operator()(CUstream_st* stream) const { cudaStreamDestroy(stream); }
};
struct EventFree {
  void operator()(CUevent_st* event) const { cudaEventDestroy(event); }
};
struct GraphFree {
  void operator()(CUgraphExec_st* graph) const { cudaGraphExecDestroy(graph); }
};
using Stream = std::unique_ptr<CUstream_st, StreamFree>;
using Event = std::unique_ptr<CUevent_st, EventFree>;
using Graph = std::unique_ptr<CUgraphExec_st, GraphFree>;

/// Does not wait for the default stream.
inline Stream make_stream() {
  cudaStream_t stream = nullptr;
  LORATORY_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return Stream(stream);
}

inline Event make_event() {
  cudaEvent_t event = nullptr;
  LORATORY_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return Event(event);
}

/// For cudaEventElapsedTime.
inline Event make_timed_event() {
  cudaEvent_t event = nullptr;
  LORATORY_CUDA_CHECK(cudaEventCreate(&event));
  return Event(event);
}

/// Has everything before its last record ended? True if it never was recorded.
inline bool has_passed(const Event& event) {
  const cudaError_t state = cudaEventQuery(event.get());
  if (state == cudaErrorNotReady) return false;
  LORATORY_CUDA_CHECK(state);
  return true;
}

}  // namespace loratory::gpu
