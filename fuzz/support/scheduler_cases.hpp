#pragma once

#include <string>
#include <vector>

#include "fuzz/support/draw.hpp"
#include "scheduler_sim/scheduler/scheduler.hpp"

namespace loratory::sim {

/// A configuration from the corners: one slot, one sequence, a pool of a few blocks, clocks that
/// starve at once.
SchedulerConfig random_scheduler_config(Draw& draw);

/// A request of at most 20 tokens, with its content (few different tokens, so that prefixes meet).
struct RandomRequest {
  RequestSpec spec;
  std::vector<int32_t> tokens, stops;
  std::vector<uint64_t> block_contents;
};
RandomRequest random_request(Draw& draw, const SchedulerConfig& config, uint64_t id);

}  // namespace loratory::sim
