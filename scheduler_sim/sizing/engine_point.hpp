#pragma once

#include <cstdint>

namespace loratory::sim {

/// max_loras 0 is an engine without LoRA: no memory for slots, no LoRA kernels. It replays a trace
/// without adapters, or one that is spared its slots.
struct EnginePoint {
  int32_t max_loras = 0;
  int32_t max_cpu_loras = 0;
};

}  // namespace loratory::sim
