#include <stdexcept>
#include <string>

#include "gpu/runtime/cuda_check.hpp"

namespace loratory::gpu {

void cuda_check(cudaError_t error, const char* call, const char* file, int line) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + call + ": " +
                           cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

}  // namespace loratory::gpu
