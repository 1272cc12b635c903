#pragma once

#include <cstdint>
#include <vector>

#include "fuzz/support/draw.hpp"
#include "scheduler_sim/simulator/simulator.hpp"

namespace loratory::sim {

/// A sum over the shape, rounded up to `quantum_ns`: coarse ones let steps, arrivals and transfers
/// end at the same time.
class LinearTime : public StepTimeModel {
 public:
  explicit LinearTime(Draw& draw, int64_t quantum_ns);
  int64_t step_ns(const BatchShape& s) const override;

 private:
  int64_t quantum_ns_;
  int64_t weights_[7];
};

/// A small replay from the corners: tiny pools, clocks that starve at once, cancellations, pins,
/// unloads, times that coincide.
struct World {
  Trace trace;
  SimulationConfig config;
  std::vector<ScheduledOp> ops;
  int64_t quantum_ns;
};
World random_world(Draw& draw, int num_requests);

}  // namespace loratory::sim
