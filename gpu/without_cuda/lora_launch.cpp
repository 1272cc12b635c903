// In a build without a CUDA compiler everything can be planned and checked, and nothing launched.
#include <stdexcept>

#include "gpu/kernels/lora_linear.hpp"

namespace loratory::gpu {

std::vector<LoraVariant> lora_variants(reference::Dtype, reference::Dtype) { return {}; }

void launch_lora_linear(const LoraLaunch&) {
  throw std::runtime_error("lora_linear: this build of loratory has no CUDA kernels");
}

}  // namespace loratory::gpu
