// As model_launch.cpp, in a file of its own: the emulated GPU of tests has no sampler.
#include <stdexcept>

#include "gpu/model/model_launch.hpp"

namespace loratory::gpu {

void launch_sample(const SampleLaunch&, CUstream_st*, LaunchOrder) {
  throw std::runtime_error("sample: this build of loratory has no CUDA kernels");
}

}  // namespace loratory::gpu
