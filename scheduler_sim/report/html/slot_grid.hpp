#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler_sim/metrics/results.hpp"

namespace loratory::sim::report {

/// Adapter `adapter` fills columns [begin, end) of the row of `slot`.
struct SlotRun {
  uint16_t slot = 0;
  uint32_t begin = 0, end = 0;
  uint32_t adapter = 0;
};

/// Spans of residency on a grid of `num_columns` equal parts of [0, end_ns): each cell shows the
/// span that fills most of it, equal neighbours are one run. Slots from `num_slots` on are left
/// out. By slot, then by time. Cost O(spans + slots x columns).
std::vector<SlotRun> runs_of(std::span<const SlotSpan> spans, uint32_t num_slots,
                             uint32_t num_columns, int64_t end_ns);

}  // namespace loratory::sim::report
