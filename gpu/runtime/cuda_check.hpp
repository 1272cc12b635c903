#pragma once

#include <cuda_runtime_api.h>

namespace loratory::gpu {

/// Throws std::runtime_error "<file>:<line>: <call>: <name>: <text>" and clears the error.
void cuda_check(cudaError_t error, const char* call, const char* file, int line);

}  // namespace loratory::gpu

#define LORATORY_CUDA_CHECK(call) ::loratory::gpu::cuda_check((call), #call, __FILE__, __LINE__)
