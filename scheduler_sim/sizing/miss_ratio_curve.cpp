#include "scheduler_sim/sizing/miss_ratio_curve.hpp"

#include <algorithm>
#include <numeric>
#include <queue>

#include "reference/base/check.hpp"

namespace loratory::sim {
namespace {

constexpr size_t kNeverUsed = std::numeric_limits<size_t>::max();

// References by dense ids 0 .. num_ids-1, in order of first use.
struct DenseStream {
  std::vector<uint32_t> ids;
  uint32_t num_ids = 0;

  explicit DenseStream(std::span<const AdapterIndex> references) {
    std::vector<AdapterIndex> sorted(references.begin(), references.end());
    std::sort(sorted.begin(), sorted.end());
    sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
    std::vector<uint32_t> id_of(sorted.size(), UINT32_MAX);
    ids.reserve(references.size());
    for (const AdapterIndex adapter : references) {
      const auto it = std::lower_bound(sorted.begin(), sorted.end(), adapter);
      uint32_t& id = id_of[size_t(it - sorted.begin())];
      if (id == UINT32_MAX) id = num_ids++;
      ids.push_back(id);
    }
  }
};

// A set of positions 0 .. n-1 that counts its members below a position (Fenwick tree).
class PositionSet {
 public:
  explicit PositionSet(size_t n) : sums_(n + 1, 0) {}

  void insert(size_t position) { add(position, 1); }
  void erase(size_t position) { add(position, -1); }
  int64_t count_below(size_t position) const {
    int64_t sum = 0;
    for (size_t i = position; i > 0; i &= i - 1) sum += sums_[i];
    return sum;
  }

 private:
  void add(size_t position, int32_t delta) {
    for (size_t i = position + 1; i < sums_.size(); i += i & (~i + 1)) sums_[i] += delta;
  }
  std::vector<int32_t> sums_;
};

// Entry d: how many references have reuse distance d (0: first uses).
std::vector<uint64_t> count_reuse_distances(const DenseStream& stream) {
  std::vector<uint64_t> counts(stream.num_ids + size_t{1}, 0);
  std::vector<size_t> last_use(stream.num_ids, kNeverUsed);
  PositionSet last_uses(stream.ids.size());
  int64_t num_used = 0;
  for (size_t now = 0; now < stream.ids.size(); ++now) {
    size_t& last = last_use[stream.ids[now]];
    if (last == kNeverUsed) {
      ++counts[0];
      ++num_used;
    } else {
      // Adapters used since: those whose last use is not before this one's.
      ++counts[size_t(num_used - last_uses.count_below(last))];
      last_uses.erase(last);
    }
    last = now;
    last_uses.insert(now);
  }
  return counts;
}

std::vector<size_t> next_uses(const DenseStream& stream) {
  std::vector<size_t> next(stream.ids.size());
  std::vector<size_t> next_of_id(stream.num_ids, kNeverUsed);
  for (size_t i = stream.ids.size(); i-- > 0;) {
    next[i] = next_of_id[stream.ids[i]];
    next_of_id[stream.ids[i]] = i;
  }
  return next;
}

uint64_t count_opt_misses(const DenseStream& stream, const std::vector<size_t>& next_use,
                          size_t size) {
  // Entries (next use, id). An adapter that is used again leaves its old entry behind, but such an
  // entry lies in the past and those of residents in the future: the top is always a resident.
  std::priority_queue<std::pair<size_t, uint32_t>> by_next_use;
  std::vector<bool> is_resident(stream.num_ids, false);
  size_t num_resident = 0;
  uint64_t misses = 0;
  for (size_t now = 0; now < stream.ids.size(); ++now) {
    const uint32_t id = stream.ids[now];
    if (!is_resident[id]) {
      ++misses;
      if (num_resident == size) {
        is_resident[by_next_use.top().second] = false;
        by_next_use.pop();
      } else {
        ++num_resident;
      }
      is_resident[id] = true;
    }
    by_next_use.emplace(next_use[now], id);
  }
  return misses;
}

// Entry id: 0 for the most requested adapter, 1 for the next, ...
std::vector<uint32_t> popularity_places(const DenseStream& stream) {
  std::vector<uint64_t> uses(stream.num_ids, 0);
  for (const uint32_t id : stream.ids) ++uses[id];
  std::vector<uint32_t> order(stream.num_ids);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return uses[a] > uses[b]; });
  std::vector<uint32_t> places(stream.num_ids);
  for (uint32_t place = 0; place < stream.num_ids; ++place) places[order[place]] = place;
  return places;
}

uint64_t count_top_k_misses(const DenseStream& stream, const std::vector<uint32_t>& places,
                            size_t size) {
  std::vector<bool> is_loaded(stream.num_ids, false);
  uint32_t in_last_slot = UINT32_MAX;
  uint64_t misses = 0;
  for (const uint32_t id : stream.ids) {
    if (places[id] + size_t{1} < size) {
      misses += !is_loaded[id];
      is_loaded[id] = true;
    } else {
      misses += in_last_slot != id;
      in_last_slot = id;
    }
  }
  return misses;
}

template <typename CountMisses>
MissRatioCurve make_curve(const char* policy, const DenseStream& stream,
                          std::span<const int32_t> sizes, const CountMisses& count_misses) {
  MissRatioCurve curve{policy, {sizes.begin(), sizes.end()}, {}};
  for (const int32_t size : sizes) {
    LORATORY_ASSERT(size >= 1, "a miss ratio needs at least one slot");
    const double misses = double(count_misses(size_t(size)));
    const auto n = double(stream.ids.size());
    curve.miss_ratios.push_back(stream.ids.empty() ? 0 : misses / n);
  }
  return curve;
}

MissRatioCurve lru_curve_of(const DenseStream& stream, std::span<const int32_t> sizes) {
  // misses[d]: references that size d does not serve = first uses and distances above d.
  std::vector<uint64_t> misses = count_reuse_distances(stream);
  uint64_t left = stream.ids.size();
  for (size_t d = 1; d < misses.size(); ++d) misses[d] = left -= misses[d];
  return make_curve("lru", stream, sizes,
                    [&](size_t size) { return misses[std::min(size, misses.size() - 1)]; });
}

MissRatioCurve opt_curve_of(const DenseStream& stream, std::span<const int32_t> sizes) {
  const std::vector<size_t> next_use = next_uses(stream);
  return make_curve("opt", stream, sizes,
                    [&](size_t size) { return count_opt_misses(stream, next_use, size); });
}

MissRatioCurve top_k_curve_of(const DenseStream& stream, std::span<const int32_t> sizes) {
  const std::vector<uint32_t> places = popularity_places(stream);
  return make_curve("top-k", stream, sizes,
                    [&](size_t size) { return count_top_k_misses(stream, places, size); });
}

}  // namespace

std::vector<AdapterIndex> adapter_references(const Trace& trace) {
  std::vector<AdapterIndex> references;
  for (const TraceRequest& request : trace.requests) {
    if (request.adapter != kBaseModel) references.push_back(request.adapter);
  }
  return references;
}

MissRatioCurve lru_curve(std::span<const AdapterIndex> references, std::span<const int32_t> sizes) {
  return lru_curve_of(DenseStream(references), sizes);
}

MissRatioCurve opt_curve(std::span<const AdapterIndex> references, std::span<const int32_t> sizes) {
  return opt_curve_of(DenseStream(references), sizes);
}

MissRatioCurve top_k_curve(std::span<const AdapterIndex> references,
                           std::span<const int32_t> sizes) {
  return top_k_curve_of(DenseStream(references), sizes);
}

std::vector<MissRatioCurve> miss_ratio_curves(std::span<const AdapterIndex> references,
                                              std::span<const int32_t> sizes) {
  const DenseStream stream(references);
  return {lru_curve_of(stream, sizes), opt_curve_of(stream, sizes), top_k_curve_of(stream, sizes)};
}

std::vector<std::pair<double, double>> reuse_distance_cdf(
    std::span<const AdapterIndex> references) {
  const std::vector<uint64_t> counts = count_reuse_distances(DenseStream(references));
  std::vector<std::pair<double, double>> cdf;
  uint64_t sum = 0;
  for (size_t d = 1; d < counts.size(); ++d) {
    if (counts[d] == 0) continue;
    sum += counts[d];
    cdf.emplace_back(d, double(sum) / double(references.size()));
  }
  return cdf;
}

}  // namespace loratory::sim
