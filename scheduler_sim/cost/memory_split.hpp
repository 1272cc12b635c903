#pragma once

#include <cstdint>

namespace loratory::sim {

/// Where the memory of the GPU and the host goes, in bytes.
struct MemorySplit {
  int64_t hbm_bytes = 0;  ///< what the engine may use: card x utilization
  int64_t weights_bytes = 0;
  int64_t slot_bytes = 0;  ///< all max_loras slots
  int64_t kv_bytes = 0;
  int64_t reserve_bytes = 0;  ///< activations, graphs, fragmentation
  int64_t kv_blocks = 0;      ///< usable blocks; 0 = does not fit
  int64_t block_bytes = 0;
  int64_t host_bytes = 0;  ///< adapters in the CPU tier when it is full
};

}  // namespace loratory::sim
