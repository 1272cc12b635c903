#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "scheduler_sim/scheduler/request.hpp"

namespace loratory::sim {

/// A set of places that says how many come before one. Sorted chunks of up to kMost places: of n,
/// a search costs log n and num_before adds up n / kMost counts, all in a few cache lines. Places
/// that come in order fill whole chunks.
class PlaceCounter {
 public:
  void insert(const WaitKey& place);
  /// It is in the set.
  void erase(const WaitKey& place);
  size_t num_before(const WaitKey& place) const;
  size_t size() const { return size_; }
  /// What num_before costs. Few places are few chunks, whatever was there before.
  size_t num_chunks() const { return chunks_.size(); }

 private:
  static constexpr size_t kMost = 128;
  struct Chunk {
    WaitKey last;
    std::vector<WaitKey> places;  // ascending, not empty
  };
  /// The first chunk with a place that does not come before this one.
  size_t chunk_of(const WaitKey& place) const {
    return size_t(std::ranges::lower_bound(chunks_, place, {}, &Chunk::last) - chunks_.begin());
  }
  void split(size_t index);
  void merge_with_next(size_t index);

  std::vector<Chunk> chunks_;
  size_t size_ = 0;
};

}  // namespace loratory::sim
