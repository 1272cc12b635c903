#pragma once

#include <cstdint>

#include "reference/base/integers.hpp"

namespace loratory::gpu {

/// Places in one allocation, each at a multiple of 256 bytes: what every vector access, TMA and
/// cuBLASLt ask for.
class Arena {
 public:
  static constexpr int64_t kAlignment = 256;

  /// Where the next `bytes` lie.
  int64_t add(int64_t bytes) {
    const int64_t offset = bytes_;
    bytes_ += ceil_div(bytes, kAlignment) * kAlignment;
    return offset;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

}  // namespace loratory::gpu
