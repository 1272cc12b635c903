// Without a CUDA compiler layers are planned for the newest GPUs.
#include "gpu/runtime/device_ability.hpp"

namespace loratory::gpu {

bool has_clusters() { return true; }
bool has_wgmma() { return true; }

}  // namespace loratory::gpu
