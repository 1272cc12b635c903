#include "gpu/runtime/device_ability.hpp"

#include <cuda_runtime_api.h>

namespace loratory::gpu {
namespace {

bool ask() {
  int device = 0, major = 9;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) {
    cudaGetLastError();  // not an error of what comes next
    return true;
  }
  return major >= 9;
}

}  // namespace

bool has_clusters() {
  static const bool answer = ask();
  return answer;
}

}  // namespace loratory::gpu
