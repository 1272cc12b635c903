#include "scheduler_sim/cost/cuda_allocator.hpp"

#include <algorithm>

#include "reference/base/integers.hpp"
#include "reference/base/units.hpp"

namespace loratory::sim {
namespace {

constexpr int64_t kSmallestPart = 512;
constexpr int64_t kLargestSmall = kMiB;
constexpr int64_t kSmallSegment = 2 * kMiB;
constexpr int64_t kLargeSegment = 20 * kMiB;
constexpr int64_t kOwnSegment = 10 * kMiB;  // from here on a segment of its own
constexpr int64_t kSegmentStep = 2 * kMiB;
constexpr int64_t kMostReserved = int64_t{1} << 60;

int64_t segment_bytes(int64_t bytes) {
  if (bytes <= kLargestSmall) return kSmallSegment;
  if (bytes < kOwnSegment) return kLargeSegment;
  return ceil_div(bytes, kSegmentStep) * kSegmentStep;
}

}  // namespace

void CudaAllocator::allocate(int64_t bytes) {
  bytes = std::min(bytes, kMostReserved);
  bytes = std::max<int64_t>(ceil_div(bytes, kSmallestPart), 1) * kSmallestPart;
  const bool is_small = bytes <= kLargestSmall;
  std::vector<int64_t>& parts = is_small ? small_ : large_;
  const auto best = std::ranges::lower_bound(parts, bytes);
  int64_t part = segment_bytes(bytes);
  if (best != parts.end()) {
    part = *best;
    parts.erase(best);
  } else {
    reserved_ = std::min(reserved_ + part, kMostReserved);
  }
  const int64_t rest = part - bytes;
  if (is_small ? rest >= kSmallestPart : rest > kLargestSmall) {
    parts.insert(std::ranges::lower_bound(parts, rest), rest);
  }
}

}  // namespace loratory::sim
