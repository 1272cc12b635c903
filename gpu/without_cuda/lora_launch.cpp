// In a build without a CUDA compiler everything can be planned and checked, and nothing launched.
#include "gpu/plan/lora_launch.hpp"

#include <stdexcept>
#include <string>

namespace loratory::gpu {

void launch_lora(const LoraLaunch& launch) {
  throw std::runtime_error(std::string(name(launch.op)) +
                           ": this build of loratory has no CUDA kernels");
}

}  // namespace loratory::gpu
