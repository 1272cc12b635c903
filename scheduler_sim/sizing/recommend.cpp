#include "scheduler_sim/sizing/recommend.hpp"

#include <algorithm>

namespace loratory::sim {
namespace {

constexpr double kSameHeadroom = 0.95;

// Rows that meet the SLO with every seed and serve as much as the best of them, smallest first.
std::vector<int32_t> candidates_of(const SizeResult& result) {
  const auto meets = [&](const ConfigResult& c) {
    return c.feasible && c.num_seeds_met == result.num_seeds;
  };
  double best = 0;
  for (const ConfigResult& c : result.configs) {
    if (meets(c)) best = std::max(best, c.request_goodput);
  }
  std::vector<int32_t> candidates;
  for (size_t i = 0; i < result.configs.size(); ++i) {
    const ConfigResult& c = result.configs[i];
    if (meets(c) && c.request_goodput >= kGoodputShare * best) candidates.push_back(int32_t(i));
  }
  return candidates;
}

int32_t robust_of(const SizeResult& result, std::vector<int32_t> candidates) {
  const auto row = [&](int32_t i) -> const ConfigResult& { return result.configs[size_t(i)]; };
  const double enough_kv = kKvShare * double(row(candidates[0]).memory.kv_blocks);
  std::erase_if(candidates, [&](int32_t i) { return double(row(i).memory.kv_blocks) < enough_kv; });
  double most = 0;
  for (const int32_t i : candidates) most = std::max(most, row(i).headroom);
  std::erase_if(candidates, [&](int32_t i) { return row(i).headroom < kSameHeadroom * most; });
  for (const int32_t i : candidates) {
    if (most > 0 && row(i).max_loras >= result.workload.num_adapters) return i;
  }
  return candidates[0];
}

}  // namespace

int32_t best_goodput(const SizeResult& result) {
  int32_t best = -1;
  for (size_t i = 0; i < result.configs.size(); ++i) {
    const ConfigResult& c = result.configs[i];
    if (!c.feasible) continue;
    if (best < 0 || c.request_goodput > result.configs[size_t(best)].request_goodput) {
      best = int32_t(i);
    }
  }
  return best;
}

int32_t choose(const SizeResult& result, Choice choice) {
  const std::vector<int32_t> candidates = candidates_of(result);
  if (candidates.empty()) return -1;
  return choice == Choice::smallest ? candidates[0] : robust_of(result, candidates);
}

int32_t choose(const SizeResult& result) { return choose(result, result.choice); }

}  // namespace loratory::sim
