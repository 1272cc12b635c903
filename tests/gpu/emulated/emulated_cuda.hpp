#pragma once

#include "tests/gpu/emulated/emulated_gpu.hpp"

struct CUstream_st;

namespace loratory::gpu::emulated {

/// Runs a kernel, each with a seed of its own, or keeps it if the stream is captured.
void launch(const Launch& launch, std::function<void(std::byte* shared)> kernel,
            CUstream_st* stream);

}  // namespace loratory::gpu::emulated
