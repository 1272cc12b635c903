#include "scheduler_sim/sizing/recommend.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reference/base/units.hpp"

namespace loratory::sim {
namespace {

constexpr double kCloseEnough = 0.99;  // goodput within 1 % of the best: take the smaller one

std::string limits_text(const Slo& slo) {
  std::string text;
  if (slo.ttft_ms > 0)
    text += fmt::format("TTFT p{:g} <= {}", slo.percentile, format_ms(slo.ttft_ms));
  if (slo.ttft_ms > 0 && slo.tpot_ms > 0) text += " and ";
  if (slo.tpot_ms > 0)
    text += fmt::format("TPOT p{:g} <= {}", slo.percentile, format_ms(slo.tpot_ms));
  return text.empty() ? "no SLO" : text;
}

std::string name_of(const ConfigResult& c) {
  return fmt::format("max_loras {} (max_cpu_loras {})", c.max_loras, c.max_cpu_loras);
}

// The nearest row with another max_loras, below or above; -1 if there is none.
int32_t neighbour(const SizeResult& result, const ConfigResult& of, int direction) {
  int32_t best = -1;
  for (size_t i = 0; i < result.configs.size(); ++i) {
    const int32_t distance = direction * (result.configs[i].max_loras - of.max_loras);
    if (distance <= 0) continue;
    if (best < 0 ||
        distance < direction * (result.configs[size_t(best)].max_loras - of.max_loras)) {
      best = int32_t(i);
    }
  }
  return best;
}

std::string about_fewer(const SizeResult& result, const ConfigResult& chosen) {
  const int32_t i = neighbour(result, chosen, -1);
  if (i < 0 || !result.configs[size_t(i)].feasible) return {};
  const ConfigResult& fewer = result.configs[size_t(i)];
  return fmt::format(
      "; with {} slots {:.0f} % of the requests find their adapter on the GPU instead "
      "of {:.0f} %, and TTFT p{:g} is {} instead of {}",
      fewer.max_loras, 100 * fewer.adapter_gpu_hit_ratio, 100 * chosen.adapter_gpu_hit_ratio,
      result.slo.percentile, format_ms(fewer.slo_ttft_ms), format_ms(chosen.slo_ttft_ms));
}

// What keeps the chosen engine from serving more.
std::string bottleneck(const ConfigResult& c) {
  if (c.num_preemptions > 0) {
    return fmt::format("the next limit is KV memory: {} preemptions already", c.num_preemptions);
  }
  int64_t most_blocks = 0;
  for (const TimelineSample& s : c.timeline) most_blocks = std::max(most_blocks, s.kv_blocks_used);
  const double kv = 100.0 * double(most_blocks) / double(std::max<int64_t>(1, c.memory.kv_blocks));
  if (kv > 80) {
    return fmt::format("the next limit is KV memory: {:.0f} % of the blocks are in use at the peak",
                       kv);
  }
  return fmt::format(
      "the next limit is the GPU's speed: a step holds {:.0f} requests on average, and KV "
      "use peaks at {:.0f} %",
      c.mean_batch_seqs, kv);
}

std::string gain_text(double percent) {
  if (percent >= 0.05) return fmt::format("bring {:.1f} % more", percent);
  return percent <= -0.05 ? fmt::format("cost {:.1f} % of the", -percent) : "bring no more";
}

std::string about_more(const SizeResult& result, const ConfigResult& chosen) {
  const int32_t i = neighbour(result, chosen, +1);
  if (i < 0) return fmt::format("no larger size was tried; {}", bottleneck(chosen));
  const ConfigResult& more = result.configs[size_t(i)];
  if (!more.feasible) {
    return fmt::format("the next limit is memory: {} slots do not fit ({})", more.max_loras,
                       more.verdict);
  }
  const double kv_share = 100.0 * double(chosen.memory.kv_blocks - more.memory.kv_blocks) /
                          double(std::max<int64_t>(1, chosen.memory.kv_blocks));
  const double gain = 100 * (more.request_goodput / std::max(1e-9, chosen.request_goodput) - 1);
  return fmt::format("{} slots would take {:.0f} % of the KV blocks and {} goodput; {}",
                     more.max_loras, kv_share, gain_text(gain), bottleneck(chosen));
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

int32_t choose(const SizeResult& result, const std::vector<bool>& meets_in_every_seed) {
  double best = 0;
  for (size_t i = 0; i < result.configs.size(); ++i) {
    if (meets_in_every_seed[i]) best = std::max(best, result.configs[i].request_goodput);
  }
  for (size_t i = 0; i < result.configs.size(); ++i) {
    const bool good = result.configs[i].request_goodput >= kCloseEnough * best;
    if (meets_in_every_seed[i] && good) return int32_t(i);
  }
  return -1;
}

void explain(SizeResult& result) {
  if (result.recommended >= 0) {
    const ConfigResult& chosen = result.configs[size_t(result.recommended)];
    const std::string seeds =
        result.num_seeds > 1 ? fmt::format(" with all {} seeds", result.num_seeds) : "";
    result.reason =
        fmt::format("{} is the smallest that meets {}{} and comes within 1 % of the best goodput{}",
                    name_of(chosen), limits_text(result.slo), seeds, about_fewer(result, chosen));
    result.next_limit = about_more(result, chosen);
    return;
  }
  const int32_t closest = best_goodput(result);
  if (closest < 0) {
    result.reason = "no configuration fits in memory";
    result.next_limit = result.configs.empty() ? "" : result.configs.front().verdict;
    return;
  }
  const ConfigResult& c = result.configs[size_t(closest)];
  result.reason = fmt::format(
      "no configuration meets {}; the best goodput is {:.3g} requests/s, "
      "at {}, where {:.1f} % of the requests meet it",
      limits_text(result.slo), c.request_goodput, name_of(c), 100 * c.slo_attainment);
  result.next_limit = fmt::format("verdict there: {}", c.verdict);
}

}  // namespace loratory::sim
