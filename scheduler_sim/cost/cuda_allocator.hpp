#pragma once

#include <cstdint>
#include <vector>

namespace loratory::sim {

/// How much memory PyTorch takes from the driver for tensors that stay: its caching allocator hands
/// out parts of segments, and what is left of a segment counts as used (PyTorch 2.6,
/// c10/cuda/CUDACachingAllocator.cpp: round_size, get_allocation_size, should_split, and best fit
/// in get_free_block). Nothing is ever freed here. Cost: O(log parts) a tensor, and a move of the
/// parts.
class CudaAllocator {
 public:
  /// Requires bytes >= 0. Sums stop growing at 2^60.
  void allocate(int64_t bytes);
  int64_t reserved_bytes() const { return reserved_; }

 private:
  int64_t reserved_ = 0;
  std::vector<int64_t> small_, large_;  // free parts of segments, ascending
};

}  // namespace loratory::sim
