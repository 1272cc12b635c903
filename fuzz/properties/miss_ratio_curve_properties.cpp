// Miss-ratio curves against caches one can read: lists of resident adapters, walked reference by
// reference. A case is a seed, a number of references, a number of adapters and a skew; the streams
// mix independent draws, scans and phases, because each favours another policy.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <list>
#include <map>

#include "scheduler_sim/sizing/miss_ratio_curve.hpp"
#include "scheduler_sim/workload/random.hpp"

namespace loratory::sim {
namespace {

struct Case {
  uint64_t seed;
  uint32_t num_references;
  uint32_t num_adapters;
  uint32_t pattern;  // 0 skewed draws, 1 scans, 2 phases with their own working sets

  std::string repro() const {
    return fmt::format("REPRO: Case{{{}, {}, {}, {}}}", seed, num_references, num_adapters,
                       pattern);
  }
};

std::vector<AdapterIndex> make_stream(const Case& c) {
  const RandomStream draws(c.seed, uint64_t{1});
  std::vector<AdapterIndex> stream;
  for (uint32_t i = 0; i < c.num_references; ++i) {
    const double u = draws.unit(i);
    uint32_t adapter = uint32_t(u * u * u * c.num_adapters);
    if (c.pattern == 1 && draws.unit(i / 64, 1) < 0.5) adapter = i % c.num_adapters;
    if (c.pattern == 2) adapter = (adapter / 3 + i / 50 * 7) % c.num_adapters;
    stream.push_back(adapter * 1000 + 17);  // indices need not be dense
  }
  return stream;
}

Case arbitrary_case() {
  Case c{*rc::gen::arbitrary<uint32_t>(), *rc::gen::inRange(0u, 400u), *rc::gen::inRange(1u, 40u),
         *rc::gen::element(0u, 1u, 2u)};
  RC_CLASSIFY(c.num_references == 0, "empty");
  RC_CLASSIFY(c.num_references > 4 * c.num_adapters, "long");
  RC_CLASSIFY(c.pattern == 0, "skewed");
  RC_CLASSIFY(c.pattern == 1, "scans");
  RC_CLASSIFY(c.pattern == 2, "phases");
  return c;
}

std::vector<int32_t> all_sizes(const Case& c) {
  std::vector<int32_t> sizes;
  for (int32_t size = 1; size <= int32_t(c.num_adapters) + 2; ++size) {
    sizes.push_back(size);
  }
  return sizes;
}

enum class Policy { lru, fifo, lfu };

// Front = the next to be evicted. LFU counts all uses ever; ties go to the front of the list.
uint64_t count_misses(const std::vector<AdapterIndex>& stream, size_t size, Policy policy) {
  std::list<AdapterIndex> residents;
  std::map<AdapterIndex, uint64_t> uses;
  uint64_t misses = 0;
  for (const AdapterIndex adapter : stream) {
    ++uses[adapter];
    const auto it = std::find(residents.begin(), residents.end(), adapter);
    if (it != residents.end()) {
      if (policy == Policy::lru) residents.splice(residents.end(), residents, it);
      continue;
    }
    ++misses;
    if (residents.size() == size) {
      auto victim = residents.begin();
      if (policy == Policy::lfu) {
        victim = std::min_element(residents.begin(), residents.end(),
                                  [&](auto a, auto b) { return uses[a] < uses[b]; });
      }
      residents.erase(victim);
    }
    residents.push_back(adapter);
  }
  return misses;
}

double ratio(uint64_t misses, const std::vector<AdapterIndex>& stream) {
  return stream.empty() ? 0 : double(misses) / double(stream.size());
}

// The fewest misses of any policy, by trying every eviction.
uint64_t fewest_misses(const std::vector<AdapterIndex>& stream, size_t size) {
  std::map<std::vector<AdapterIndex>, uint64_t> best = {{{}, 0}};  // sorted residents -> misses
  for (const AdapterIndex adapter : stream) {
    std::map<std::vector<AdapterIndex>, uint64_t> next;
    const auto offer = [&](std::vector<AdapterIndex> residents, uint64_t misses) {
      std::sort(residents.begin(), residents.end());
      const auto [it, is_new] = next.try_emplace(std::move(residents), misses);
      if (!is_new) it->second = std::min(it->second, misses);
    };
    for (const auto& [residents, misses] : best) {
      if (std::count(residents.begin(), residents.end(), adapter) > 0) {
        offer(residents, misses);
      } else if (residents.size() < size) {
        auto grown = residents;
        grown.push_back(adapter);
        offer(std::move(grown), misses + 1);
      } else {
        for (size_t victim = 0; victim < size; ++victim) {
          auto changed = residents;
          changed[victim] = adapter;
          offer(std::move(changed), misses + 1);
        }
      }
    }
    best = std::move(next);
  }
  uint64_t fewest = stream.size();
  for (const auto& [residents, misses] : best) fewest = std::min(fewest, misses);
  return fewest;
}

RC_GTEST_PROP(MissRatioCurve, MattsonEqualsADirectLruForEverySize, ()) {
  const Case c = arbitrary_case();
  const auto stream = make_stream(c);
  const MissRatioCurve curve = lru_curve(stream, all_sizes(c));
  for (size_t i = 0; i < curve.sizes.size(); ++i) {
    const auto size = size_t(curve.sizes[i]);
    const double direct = ratio(count_misses(stream, size, Policy::lru), stream);
    if (curve.miss_ratios[i] != direct) {
      RC_FAIL(fmt::format("{}: size {}: Mattson {}, direct {}", c.repro(), size,
                          curve.miss_ratios[i], direct));
    }
  }
}

RC_GTEST_PROP(MissRatioCurve, OptIsNeverWorseThanAnyPolicy, ()) {
  const Case c = arbitrary_case();
  const auto stream = make_stream(c);
  const auto sizes = all_sizes(c);
  const MissRatioCurve opt = opt_curve(stream, sizes);
  const MissRatioCurve top_k = top_k_curve(stream, sizes);
  bool beats_all = false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::vector<double> others = {top_k.miss_ratios[i]};
    for (const Policy policy : {Policy::lru, Policy::fifo, Policy::lfu}) {
      others.push_back(ratio(count_misses(stream, size_t(sizes[i]), policy), stream));
    }
    const double best = *std::min_element(others.begin(), others.end());
    if (opt.miss_ratios[i] > best) {
      RC_FAIL(fmt::format("{}: size {}: OPT {}, best {}", c.repro(), sizes[i], opt.miss_ratios[i],
                          best));
    }
    beats_all |= opt.miss_ratios[i] < best;
  }
  RC_CLASSIFY(beats_all, "OPT beats all somewhere");
}

RC_GTEST_PROP(MissRatioCurve, OptEqualsTryingEveryEviction, ()) {
  Case c = arbitrary_case();
  c.num_references %= 40;
  c.num_adapters = 1 + c.num_adapters % 7;
  const auto stream = make_stream(c);
  const MissRatioCurve opt = opt_curve(stream, all_sizes(c));
  for (size_t i = 0; i < opt.sizes.size(); ++i) {
    const double fewest = ratio(fewest_misses(stream, size_t(opt.sizes[i])), stream);
    if (opt.miss_ratios[i] != fewest) {
      RC_FAIL(fmt::format("{}: size {}: OPT {}, fewest {}", c.repro(), opt.sizes[i],
                          opt.miss_ratios[i], fewest));
    }
  }
}

RC_GTEST_PROP(MissRatioCurve, MoreSlotsNeverMissMore, ()) {
  const Case c = arbitrary_case();
  const auto stream = make_stream(c);
  for (const MissRatioCurve& curve : miss_ratio_curves(stream, all_sizes(c))) {
    // Inclusion: what LRU or MIN of one size holds, the next size holds too. top-k adds one
    // adapter that stays, and what passes through its last slot only gets less.
    const bool falls = std::is_sorted(curve.miss_ratios.rbegin(), curve.miss_ratios.rend());
    if (!falls) RC_FAIL(fmt::format("{}: {} rises with size", c.repro(), curve.policy));
  }
}

RC_GTEST_PROP(MissRatioCurve, ReuseDistancesAreTheLruCurveReadBackwards, ()) {
  const Case c = arbitrary_case();
  const auto stream = make_stream(c);
  const MissRatioCurve lru = lru_curve(stream, all_sizes(c));
  for (const auto& [distance, share] : reuse_distance_cdf(stream)) {
    const auto i = size_t(distance) - 1;
    RC_ASSERT(std::abs(1 - lru.miss_ratios[i] - share) < 1e-12);
  }
}

}  // namespace
}  // namespace loratory::sim
