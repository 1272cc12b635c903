#pragma once

#include <chrono>
#include <cstdint>

#include "scheduler_sim/serving/clock.hpp"

namespace loratory::cli {

/// The machine's monotonic clock, from the moment of construction on, or that of restart().
class WallClock final : public sim::Clock {
 public:
  int64_t now_ns() override;
  void wait_until(int64_t time_ns) override;
  /// The run begins now. Nobody has kept a time of this clock.
  void restart() { start_ = Machine::now(); }

 private:
  using Machine = std::chrono::steady_clock;
  Machine::time_point start_ = Machine::now();
};

}  // namespace loratory::cli
