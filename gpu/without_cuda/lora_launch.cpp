// In a build without a CUDA compiler everything can be planned and checked, and nothing launched.
#include "gpu/plan/lora_launch.hpp"

#include <stdexcept>
#include <string>

#include "gpu/plan/quantized_launch.hpp"

namespace loratory::gpu {

void launch_lora(const LoraLaunch& launch) {
  throw std::runtime_error(std::string(name(launch.op)) +
                           ": this build of loratory has no CUDA kernels");
}

void launch_quantized(const QuantizedLaunch& launch) {
  throw std::runtime_error(std::string(name(launch.op)) +
                           ": this build of loratory has no CUDA kernels");
}

void launch_quantize_h(const QuantizeHParams&, CUstream_st*, LaunchOrder) {
  throw std::runtime_error("lora_linear: this build of loratory has no CUDA kernels");
}

}  // namespace loratory::gpu
