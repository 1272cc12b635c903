#include "cli/wall_clock.hpp"

#include <thread>

namespace loratory::cli {

int64_t WallClock::now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Machine::now() - start_).count();
}

void WallClock::wait_until(int64_t time_ns) {
  std::this_thread::sleep_until(start_ + std::chrono::nanoseconds(time_ns));
}

}  // namespace loratory::cli
