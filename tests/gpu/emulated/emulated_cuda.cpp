// The calls of CUDA's runtime that tests make, for an emulated GPU: its memory is the host's, and
// every launch has ended when it returns.
#include "tests/gpu/emulated/emulated_cuda.hpp"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "gpu/runtime/device_ability.hpp"

namespace {

using loratory::gpu::emulated::Launch;
struct Node {
  Launch launch;
  std::function<void(std::byte*)> kernel;
};
uint64_t seed = 1;
/// Cases are as small as for compute-sanitizer.
[[maybe_unused]] const int are_small = setenv("LORATORY_GPU_WORK", "100000", /*overwrite=*/0);

void run_next(Launch launch, const std::function<void(std::byte*)>& kernel) {
  launch.seed = seed++;
  loratory::gpu::emulated::run(launch, kernel);
}

/// As aligned as cudaMalloc's, and not cleared.
void* allocate(size_t size) {
  constexpr size_t kAlignment = 256;
  const size_t whole = (size + kAlignment - 1) / kAlignment * kAlignment;
  void* const out = std::aligned_alloc(kAlignment, whole);
  return out == nullptr ? nullptr : std::memset(out, 0xFF, whole);
}

}  // namespace

struct CUgraph_st {
  std::vector<Node> nodes;
};
struct CUgraphExec_st {
  std::vector<Node> nodes;
};
struct CUstream_st {
  CUgraph_st* captured = nullptr;
};

void loratory::gpu::emulated::launch(const Launch& launch,
                                     std::function<void(std::byte* shared)> kernel,
                                     CUstream_st* stream) {
  if (stream != nullptr && stream->captured != nullptr)
    stream->captured->nodes.push_back({launch, std::move(kernel)});
  else
    run_next(launch, kernel);
}

/// So few that some cases have few tokens for them, and others many.
int loratory::gpu::num_sms() { return 12; }

extern "C" {

cudaError_t cudaMalloc(void** p, size_t size) {
  *p = allocate(size);
  return *p == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaMallocHost(void** p, size_t size) { return cudaMalloc(p, size); }
cudaError_t cudaFree(void* p) {
  std::free(p);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) { return cudaFree(p); }
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
  if (size > 0) std::memcpy(to, from, size);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, size_t size) {
  std::memset(to, value, size);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "an error"; }
const char* cudaGetErrorString(cudaError_t) { return "of the emulated GPU"; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::strcpy(properties->name, "emulated");
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return cudaStreamCreate(stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  stream->captured = new CUgraph_st;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = std::exchange(stream->captured, nullptr);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{graph->nodes};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  for (const Node& node : exec->nodes) run_next(node.launch, node.kernel);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

// Events, which no test waits for.
cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned) { return cudaErrorNotSupported; }
cudaError_t cudaEventCreate(cudaEvent_t*) { return cudaErrorNotSupported; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }

}  // extern "C"
