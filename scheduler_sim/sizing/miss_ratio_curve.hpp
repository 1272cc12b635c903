#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

/// One curve of miss ratios: entry i belongs to max_loras = sizes[i].
struct MissRatioCurve {
  std::string policy;  ///< "lru", "opt", "top-k"
  std::vector<int32_t> sizes;
  std::vector<double> miss_ratios;
};

/// Miss ratios of the adapter stream: the requests of a trace, one after the other, each asking for
/// its adapter to be in one of `size` slots. A miss loads it, and evicts one if all slots are
/// taken; the first use of an adapter is always a miss. Time, batching and pins are left out, so a
/// replay differs: it holds the adapters of running requests, and requests that wait together share
/// a load.
///
///   "lru"    evicts the least recently used (Mattson et al., IBM Systems Journal 9 (1970))
///   "opt"    evicts the one whose next use is farthest away (Belady's MIN, same journal 5 (1966))
///   "top-k"  the size-1 most requested adapters stay once loaded, the last slot serves all others
///
/// All three must load what they miss, as an engine must before it can run a request; so "opt" is
/// never above any other policy that does, "top-k" with its first loads included. (A top-k that
/// could skip loading would hit on `size` adapters and could undercut "opt".)
/// All are pure functions; `sizes` are >= 1, in any order.

/// The adapter of every request that has one, in request order.
std::vector<AdapterIndex> adapter_references(const Trace& trace);

/// Exact for all sizes from one pass. Cost: O(n log n) for n references.
MissRatioCurve lru_curve(std::span<const AdapterIndex> references, std::span<const int32_t> sizes);

/// Cost: O(n log n) per size.
MissRatioCurve opt_curve(std::span<const AdapterIndex> references, std::span<const int32_t> sizes);

/// Equally popular adapters: the one used first counts as more popular. Cost: O(n) per size.
MissRatioCurve top_k_curve(std::span<const AdapterIndex> references,
                           std::span<const int32_t> sizes);

/// lru, opt and top-k, in this order.
std::vector<MissRatioCurve> miss_ratio_curves(std::span<const AdapterIndex> references,
                                              std::span<const int32_t> sizes);

/// Share of references whose reuse distance is at most d, for every d that occurs, ascending. The
/// distance counts the distinct adapters since the last use, the adapter itself included: it is the
/// smallest LRU size that hits. First uses never count, so the last share is 1 - (adapters / n).
std::vector<std::pair<double, double>> reuse_distance_cdf(std::span<const AdapterIndex> references);

}  // namespace loratory::sim
