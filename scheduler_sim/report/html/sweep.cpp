#include "scheduler_sim/report/html/sweep.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace loratory::sim::report {
namespace {

constexpr double kKneeShare = 0.95;

}  // namespace

int32_t focus_of(const SizeResult& result) {
  if (result.recommended >= 0) return result.recommended;
  int32_t best = -1;
  for (size_t i = 0; i < result.configs.size(); ++i) {
    const ConfigResult& config = result.configs[i];
    if (!config.feasible) continue;
    if (best < 0 || config.request_goodput > result.configs[size_t(best)].request_goodput) {
      best = int32_t(i);
    }
  }
  return best;
}

std::vector<size_t> sweep_of(const SizeResult& result) {
  const int32_t focus = focus_of(result);
  const int32_t host_size = focus < 0 ? -1 : result.configs[size_t(focus)].max_cpu_loras;
  const auto better = [&](const ConfigResult& a, const ConfigResult& b) {
    const bool a_matches = a.max_cpu_loras == host_size;
    const bool b_matches = b.max_cpu_loras == host_size;
    return a_matches != b_matches ? a_matches : a.request_goodput > b.request_goodput;
  };
  std::map<int32_t, size_t> chosen;
  for (size_t i = 0; i < result.configs.size(); ++i) {
    const auto [at, is_new] = chosen.try_emplace(result.configs[i].max_loras, i);
    if (!is_new && better(result.configs[i], result.configs[at->second])) at->second = i;
  }
  std::vector<size_t> sweep;
  for (const auto& [max_loras, index] : chosen) sweep.push_back(index);
  return sweep;
}

std::vector<size_t> neighbours_of_focus(const SizeResult& result) {
  const std::vector<size_t> sweep = sweep_of(result);
  const auto at = std::find(sweep.begin(), sweep.end(), size_t(focus_of(result)));
  if (at == sweep.end()) return {};
  const auto first = at == sweep.begin() ? at : at - 1;
  const auto last = at + 1 == sweep.end() ? at + 1 : at + 2;
  return {first, last};
}

int32_t knee_of(const SizeResult& result) {
  double best = 0;
  for (const ConfigResult& config : result.configs) best = std::max(best, config.request_goodput);
  for (const size_t i : sweep_of(result)) {
    const ConfigResult& config = result.configs[i];
    if (config.feasible && config.request_goodput >= kKneeShare * best) return config.max_loras;
  }
  return -1;
}

std::string size_label(const SizeResult& result, size_t config_index) {
  const bool recommended = int32_t(config_index) == result.recommended;
  return fmt::format("{}{}", result.configs[config_index].max_loras,
                     recommended ? " (recommended)" : "");
}

}  // namespace loratory::sim::report
