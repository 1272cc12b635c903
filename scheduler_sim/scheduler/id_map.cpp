#include "scheduler_sim/scheduler/id_map.hpp"

#include <bit>
#include <utility>

#include "reference/base/check.hpp"

namespace loratory::sim {

// Fibonacci hashing of groups: ids are often numbers in a row, so that those of a group are in the
// same few cache lines, and the groups spread over the whole array.
size_t IdMap::home_of(uint64_t id) const {
  const uint64_t group = (id / kGroup) * 0x9e3779b97f4a7c15u;
  const int num_bits = std::countr_zero(entries_.size() / kGroup);
  const size_t index = num_bits == 0 ? 0 : size_t(group >> (64 - num_bits));
  return index * kGroup + id % kGroup;
}

size_t IdMap::index_of(uint64_t id) const {
  size_t index = home_of(id);
  while (entries_[index].ref != kNoRequest && entries_[index].id != id) index = after(index);
  return index;
}

RequestRef IdMap::find(uint64_t id) const { return entries_[index_of(id)].ref; }

void IdMap::insert(uint64_t id, RequestRef ref) {
  if (2 * (size_ + 1) > entries_.size()) grow();
  Entry& entry = entries_[index_of(id)];
  LORATORY_ASSERT(entry.ref == kNoRequest, "ids of live requests differ");
  entry = {id, ref};
  ++size_;
}

// What follows without a gap moves up, unless it would get before its home.
void IdMap::erase(uint64_t id) {
  size_t hole = index_of(id);
  LORATORY_ASSERT(entries_[hole].ref != kNoRequest, "a request has the id");
  const size_t mask = entries_.size() - 1;
  for (size_t i = after(hole); entries_[i].ref != kNoRequest; i = after(i)) {
    const size_t from_home = (i - home_of(entries_[i].id)) & mask;
    if (from_home < ((i - hole) & mask)) continue;
    entries_[hole] = entries_[i];
    hole = i;
  }
  entries_[hole] = {};
  --size_;
}

void IdMap::grow() {
  std::vector<Entry> old(2 * entries_.size());
  std::swap(old, entries_);
  for (const Entry& entry : old) {
    if (entry.ref != kNoRequest) entries_[index_of(entry.id)] = entry;
  }
}

}  // namespace loratory::sim
