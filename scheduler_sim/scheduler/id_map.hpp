#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "scheduler_sim/scheduler/request.hpp"

namespace loratory::sim {

/// Requests by what clients call them: one array, linear probing, at most half full. Nobody walks
/// over it, so that its order decides nothing.
class IdMap {
 public:
  /// kNoRequest if there is none.
  RequestRef find(uint64_t id) const;
  /// No request has the id yet.
  void insert(uint64_t id, RequestRef ref);
  /// A request has the id.
  void erase(uint64_t id);
  size_t size() const { return size_; }

 private:
  struct Entry {
    uint64_t id = 0;
    RequestRef ref = kNoRequest;  // kNoRequest = empty
  };
  size_t home_of(uint64_t id) const;
  size_t after(size_t index) const { return (index + 1) & (entries_.size() - 1); }
  size_t index_of(uint64_t id) const;  // or the empty entry where it would be
  void grow();

  static constexpr size_t kGroup = 16;
  std::vector<Entry> entries_ = std::vector<Entry>(kGroup);  // a power of two
  size_t size_ = 0;
};

}  // namespace loratory::sim
