#pragma once

#include <cstdint>
#include <utility>

namespace loratory::gpu {

/// What the host does for steps: from the moment at which it learns of something to the moment at
/// which it has nothing left to do but to wait. Planning, commits and whatever else a loop does
/// between two waits count; a span without a step's begin or end does not.
///
///   waits next()   wakes ... begins or ends a step ... waits next()
class HostTime {
 public:
  /// Executor::next returns.
  void wakes(int64_t now_ns) { counted_ns_ = now_ns, worked_ = false; }
  /// A step has begun or ended.
  void works(int64_t now_ns) {
    count(now_ns);
    worked_ = true;
  }
  /// Executor::next is called.
  void waits(int64_t now_ns) {
    if (worked_) count(now_ns);
    worked_ = false;
  }
  int64_t total_ns() const { return total_ns_; }

 private:
  void count(int64_t now_ns) { total_ns_ += now_ns - std::exchange(counted_ns_, now_ns); }

  int64_t counted_ns_ = 0, total_ns_ = 0;
  bool worked_ = false;
};

}  // namespace loratory::gpu
