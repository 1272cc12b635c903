#pragma once

#include <cstdint>

namespace loratory::sim {

/// The time of a run, in nanoseconds since its start. The rooms below the program read no clock of
/// the machine: they are given one, and a test gives one of its own.
class Clock {
 public:
  virtual ~Clock() = default;
  /// Never falls.
  virtual int64_t now_ns() = 0;
  /// Returns at `time_ns`, at once if that has passed. Nobody waits for kNever.
  virtual void wait_until(int64_t time_ns) = 0;
};

}  // namespace loratory::sim
