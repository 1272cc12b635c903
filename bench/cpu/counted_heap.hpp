#pragma once

#include <atomic>
#include <cstdint>

namespace loratory {

/// Bytes in use through operator new, now and at most.
struct CountedHeap {
  std::atomic<int64_t> now = 0, peak = 0;
  void change(int64_t bytes) {
    const int64_t held = now += bytes;
    if (held > peak) peak = held;
  }
};
extern CountedHeap heap;

}  // namespace loratory
