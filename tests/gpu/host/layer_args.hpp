#pragma once

#include <cstdint>
#include <string>

#include "gpu/api/lora_layer.hpp"
#include "tests/gpu/host/error_of.hpp"

// What a layer is given, where nothing is launched.

namespace loratory::gpu {

/// Addresses that nobody reads.
inline void* at(uintptr_t address) { return reinterpret_cast<void*>(address); }

inline SegmentView segments(int32_t size) {
  return {.num_segments = static_cast<const int32_t*>(at(0x6000)),
          .segments = static_cast<const Segment*>(at(0x7000)),
          .token_indices = static_cast<const int32_t*>(at(0x8000)),
          .segment_size = size,
          .max_segments = 100};
}

inline std::string error_of(const LoraLayerDesc& desc) {
  return error_of([&] { const LoraLayer layer(desc); });
}

}  // namespace loratory::gpu
