#pragma once

#include <chrono>
#include <cstdint>

#include "scheduler_sim/serving/clock.hpp"

namespace loratory::cli {

/// The machine's monotonic clock, from the moment of construction on.
class WallClock final : public sim::Clock {
 public:
  int64_t now_ns() override;
  void wait_until(int64_t time_ns) override;

 private:
  using Machine = std::chrono::steady_clock;
  const Machine::time_point start_ = Machine::now();
};

}  // namespace loratory::cli
