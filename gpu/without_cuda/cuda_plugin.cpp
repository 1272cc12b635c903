#include "gpu/plugin/cuda_plugin.hpp"

namespace loratory::gpu {

const LoratoryPlugin* cuda_plugin() { return nullptr; }

}  // namespace loratory::gpu
