// In a build without a CUDA compiler everything can be planned and checked, and nothing launched.
#include <stdexcept>
#include <string>

#include "gpu/kernels/lora_launch.hpp"

namespace loratory::gpu {

void launch_lora(const LoraLaunch& launch) {
  throw std::runtime_error(std::string(name(launch.stage)) +
                           ": this build of loratory has no CUDA kernels");
}

std::vector<LoraVariant> lora_variants(LoraStage, const LoraDtypes&) { return {}; }

}  // namespace loratory::gpu
