#include "gpu/runtime/device_ability.hpp"

#include <cuda_runtime_api.h>

namespace loratory::gpu {
namespace {

constexpr int kHopper = 9;

int ask_major() {
  int device = 0, major = kHopper;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) {
    cudaGetLastError();  // or the next check would report it
    return kHopper;
  }
  return major;
}
int compute_major() {
  static const int answer = ask_major();
  return answer;
}

}  // namespace

bool has_clusters() { return compute_major() >= kHopper; }
bool has_wgmma() { return compute_major() == kHopper; }

}  // namespace loratory::gpu
