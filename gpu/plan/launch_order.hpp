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
  /// The same, and x is ready, with its scales: the previous kernel lets this one start only after
  /// what wrote them has ended, as a product of x does (BaseProduct::order_behind). A LoRA linear
  /// in two launches then waits with y alone, if its shrink sums strips or has no clusters. To all
  /// others it is overlaps_previous.
  x_is_ready,
};

constexpr bool overlaps(LaunchOrder order) { return order != LaunchOrder::after_previous; }

}  // namespace loratory::gpu
