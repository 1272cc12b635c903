#include "gpu/runtime/cuda_handles.hpp"

#include "gpu/runtime/cuda_check.hpp"

namespace loratory::gpu {

void StreamFree::operator()(CUstream_st* stream) const { cudaStreamDestroy(stream); }
void EventFree::operator()(CUevent_st* event) const { cudaEventDestroy(event); }
void GraphFree::operator()(CUgraphExec_st* graph) const { cudaGraphExecDestroy(graph); }

Stream make_stream() {
  cudaStream_t stream = nullptr;
  LORATORY_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return Stream(stream);
}

Event make_event() {
  cudaEvent_t event = nullptr;
  LORATORY_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return Event(event);
}

Event make_timed_event() {
  cudaEvent_t event = nullptr;
  LORATORY_CUDA_CHECK(cudaEventCreate(&event));
  return Event(event);
}

bool has_passed(const Event& event) {
  const cudaError_t state = cudaEventQuery(event.get());
  if (state == cudaErrorNotReady) return false;
  LORATORY_CUDA_CHECK(state);
  return true;
}

// --- captures ----------------------------------------------------------------------------------

namespace {

// A capture under way. Unless it comes to its end(), what it has is thrown away.
class Capture {
 public:
  explicit Capture(CUstream_st* stream) : stream_(stream) {
    LORATORY_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  }
  ~Capture() {
    if (!has_ended_) cudaStreamEndCapture(stream_, &graph_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
    if (!has_ended_) cudaGetLastError();  // or the next check would report it
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  cudaGraph_t end() {
    has_ended_ = true;
    LORATORY_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph_));
    return graph_;
  }

 private:
  CUstream_st* stream_;
  cudaGraph_t graph_ = nullptr;
  bool has_ended_ = false;
};

}  // namespace

Graph capture(CUstream_st* stream, const std::function<void()>& enqueue) {
  Capture captured(stream);
  enqueue();
  cudaGraphExec_t graph = nullptr;
  LORATORY_CUDA_CHECK(cudaGraphInstantiate(&graph, captured.end(), 0));
  return Graph(graph);
}

}  // namespace loratory::gpu
