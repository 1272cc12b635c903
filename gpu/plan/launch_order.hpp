#pragma once

#include <cstdint>

namespace loratory::gpu {

/// When a launch may start.
enum class LaunchOrder : uint8_t {
  after_previous,  ///< as any kernel in a stream
  /// While the previous kernel still runs (programmatic dependent launch). Weights are fetched
  /// ahead; x, h and y are read only after that kernel has ended. Neither it nor the kernels that
  /// it may overlap in turn may write A, B, ranks, scalings or segments, because these kernels let
  /// the next one start as soon as they run. After such a write the first launch is after_previous.
  overlaps_previous,
};

}  // namespace loratory::gpu
