#include "gpu/runtime/device_ability.hpp"

#include <cuda_runtime_api.h>

#include "gpu/runtime/cuda_check.hpp"

namespace loratory::gpu {
namespace {

constexpr int kHopper = 9;

int ask_major(int device) {
  int major = kHopper;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess) {
    return major;
  }
  cudaGetLastError();  // or the next check would report it
  return kHopper;
}
int compute_major() {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) {
    cudaGetLastError();
    return kHopper;
  }
  thread_local int last_device = -1, major = kHopper;
  if (device != last_device) major = ask_major(device);
  last_device = device;
  return major;
}

}  // namespace

bool has_clusters() { return compute_major() >= kHopper; }
bool has_wgmma() { return compute_major() == kHopper; }

int num_sms() {
  int device = 0, out = 0;
  LORATORY_CUDA_CHECK(cudaGetDevice(&device));
  LORATORY_CUDA_CHECK(cudaDeviceGetAttribute(&out, cudaDevAttrMultiProcessorCount, device));
  return out;
}

}  // namespace loratory::gpu
