#include "scheduler_sim/scheduler/place_counter.hpp"

#include "reference/base/check.hpp"

namespace loratory::sim {

void PlaceCounter::insert(const WaitKey& place) {
  ++size_;
  size_t index = chunk_of(place);
  const bool is_last = index == chunks_.size();
  if (is_last && (chunks_.empty() || chunks_.back().places.size() == kMost)) {
    chunks_.emplace_back();
    chunks_.back().places.reserve(kMost);
  }
  if (is_last) {
    chunks_.back().places.push_back(place);
    chunks_.back().last = place;
    return;
  }
  if (chunks_[index].places.size() == kMost) {
    split(index);
    index = chunk_of(place);
  }
  std::vector<WaitKey>& places = chunks_[index].places;
  places.insert(std::ranges::lower_bound(places, place), place);
}

void PlaceCounter::erase(const WaitKey& place) {
  const size_t index = chunk_of(place);
  LORATORY_ASSERT(index < chunks_.size(), "the place is in the set");
  std::vector<WaitKey>& places = chunks_[index].places;
  const auto at = std::ranges::lower_bound(places, place);
  LORATORY_ASSERT(at != places.end() && *at == place, "the place is in the set");
  places.erase(at);
  --size_;
  if (places.empty()) {
    chunks_.erase(chunks_.begin() + ptrdiff_t(index));
    return;
  }
  chunks_[index].last = places.back();
  merge_with_next(index);
}

size_t PlaceCounter::num_before(const WaitKey& place) const {
  const size_t index = chunk_of(place);
  size_t count = 0;
  for (size_t i = 0; i < index; ++i) count += chunks_[i].places.size();
  if (index == chunks_.size()) return count;
  const std::vector<WaitKey>& places = chunks_[index].places;
  return count + size_t(std::ranges::lower_bound(places, place) - places.begin());
}

void PlaceCounter::split(size_t index) {
  Chunk upper{chunks_[index].last, {}};
  std::vector<WaitKey>& places = chunks_[index].places;
  const auto middle = places.begin() + kMost / 2;
  upper.places.reserve(kMost);
  upper.places.assign(middle, places.end());
  places.erase(middle, places.end());
  chunks_[index].last = places.back();
  chunks_.insert(chunks_.begin() + ptrdiff_t(index) + 1, std::move(upper));
}

// Half full together: so that few places are never many chunks.
void PlaceCounter::merge_with_next(size_t index) {
  if (index + 1 == chunks_.size()) return;
  Chunk& chunk = chunks_[index];
  const Chunk& next = chunks_[index + 1];
  if (chunk.places.size() + next.places.size() > kMost / 2) return;
  chunk.places.insert(chunk.places.end(), next.places.begin(), next.places.end());
  chunk.last = next.last;
  chunks_.erase(chunks_.begin() + ptrdiff_t(index) + 1);
}

}  // namespace loratory::sim
