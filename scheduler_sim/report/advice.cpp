#include "scheduler_sim/report/advice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "scheduler_sim/report/format.hpp"
#include "scheduler_sim/sizing/headroom.hpp"
#include "scheduler_sim/sizing/recommend.hpp"

namespace loratory::sim::report {
namespace {

struct CauseName {
  const char* name;  // in files
  const char* word;  // in a table
};

// In the order of CauseKind.
constexpr auto kCauseNames =
    std::to_array<CauseName>({{"none", ""},
                              {"too_large", "larger than the KV cache"},
                              {"too_long", "longer than max_model_len"},
                              {"none_completes", "cancelled, none completes"},
                              {"slots", "slots"},
                              {"loads", "adapter loads"},
                              {"slots_and_loads", "slots and loads"},
                              {"kv_cache", "KV cache"},
                              {"seats", "max_num_seqs"},
                              {"lora_compute", "LoRA compute"},
                              {"load_peaks", "load peaks"},
                              {"gpu_speed", "GPU speed"}});

// Its figure is a number of requests, and no percentile says anything.
bool is_counted(CauseKind kind) {
  return kind == CauseKind::too_large || kind == CauseKind::too_long ||
         kind == CauseKind::none_completes;
}

const char* measure_of(const Cause& cause) { return cause.is_ttft ? "TTFT" : "TPOT"; }

bool has_limits(const Slo& slo) { return slo.ttft_ms > 0 || slo.tpot_ms > 0; }

// "TTFT p99 <= 500 ms and TPOT p99 <= 50 ms"; an empty limit is none.
std::string limits_text(double percentile, const std::string& ttft, const std::string& tpot) {
  const std::string of = format_percentile(percentile);
  std::string text;
  if (!ttft.empty()) text = fmt::format("TTFT {} <= {}", of, ttft);
  if (tpot.empty()) return text;
  return fmt::format("{}{}TPOT {} <= {}", text, text.empty() ? "" : " and ", of, tpot);
}

// What it is that one configuration does, or several: without limits it is enough to serve all.
std::string meets_text(const Slo& slo, bool is_one) {
  if (!has_limits(slo)) return is_one ? "serves every request" : "serve every request";
  const auto limit = [](double ms) { return ms > 0 ? format_ms(ms) : ""; };
  return fmt::format("{} {}", is_one ? "meets" : "meet",
                     limits_text(slo.percentile, limit(slo.ttft_ms), limit(slo.tpot_ms)));
}

std::string slots_text(const ConfigResult& c) { return count_text(c.max_loras, "slot"); }

// What late requests of a replay by itself waited for longest.
std::string longest_wait(const Waits& waits) {
  const auto shares = std::to_array<std::pair<double, const char*>>(
      {{waits.slot.of_late_time, "for a slot"},
       {waits.load.of_late_time, "for their adapter to be read"},
       {waits.copy.of_late_time, "for their adapter to be copied"},
       {waits.batch.of_late_time, "for room in the batch"}});
  const auto& [share, what] = *std::ranges::max_element(shares);
  return share < 0.01
             ? ""
             : fmt::format(": late requests wait {} ({} of their wait)", what, share_text(share));
}

std::string miss_text(const ConfigResult& c) {
  return fmt::format("{} {}", measure_of(c.cause), factor_text(c.cause.miss));
}

// What no percentile shows; empty if the SLO is missed by one.
std::string counted_miss(const ConfigResult& c) {
  if (c.failed == 0) return c.completed == 0 ? "no request completes" : "";
  const std::string count = count_text(c.failed, "request");
  if (!is_counted(c.cause.kind)) return fmt::format("{} failed", count);
  return fmt::format("{} {}", count, cause_word(c.cause.kind));
}

std::string short_verdict(const ConfigResult& c) {
  const std::string counted = counted_miss(c);
  return counted.empty() ? miss_text(c) : counted;
}

// --- what a cause is, with the figures that show it ------------------------------------------

std::string because(const Cause& c) {
  const std::string waits =
      c.figure == kUnknownFigure ? "requests" : share_text(c.figure) + " of the requests";
  switch (c.kind) {
    case CauseKind::slots:
      return fmt::format("{} wait for a slot; with one for every adapter", waits);
    case CauseKind::loads:
      return fmt::format("{} wait while their adapter is loaded; if loads took no time", waits);
    case CauseKind::slots_and_loads:
      return "requests wait for slots and for loads; with all adapters resident";
    case CauseKind::kv_cache:
      return "KV blocks run short; with enough of them";
    case CauseKind::seats:
      return "max_num_seqs requests run and the others wait; with more of them";
    case CauseKind::lora_compute:
      return "LoRA's compute lengthens the steps; without it";
    case CauseKind::load_peaks:
      return fmt::format(
          "the load has peaks: the base model alone misses by {}, and the busiest "
          "moments have {} the mean rate; with Poisson arrivals",
          factor_text(c.miss_of_base), factor_text(c.figure));
    case CauseKind::gpu_speed:
      return fmt::format(
          "the GPU is too slow: the base model alone misses by {}, with Poisson "
          "arrivals too; with steps in half the time",
          factor_text(c.miss_of_base));
    case CauseKind::none:
    case CauseKind::too_large:
    case CauseKind::too_long:
    case CauseKind::none_completes:
      break;
  }
  return "";
}

// --- why ---------------------------------------------------------------------------------------

std::string kv_cost(const ConfigResult& from, const ConfigResult& to) {
  const double share = double(from.memory.kv_blocks - to.memory.kv_blocks) /
                       double(std::max<int64_t>(1, from.memory.kv_blocks));
  return share <= 0 ? "no KV block" : fmt::format("{} of the KV blocks", share_text(share));
}

// The nearest feasible row with fewer slots, nullptr if none was tried or none fits.
const ConfigResult* next_smaller(const SizeResult& result, const ConfigResult& chosen) {
  const ConfigResult* best = nullptr;
  for (const ConfigResult& c : result.configs) {
    if (!c.feasible || c.max_loras >= chosen.max_loras) continue;
    if (best == nullptr || c.max_loras >= best->max_loras) best = &c;
  }
  return best;
}

std::string about_fewer(const SizeResult& result, const ConfigResult& chosen) {
  const ConfigResult* fewer = next_smaller(result, chosen);
  if (fewer == nullptr) return "; no smaller size was tried";
  if (fewer->meets_slo) {
    return fmt::format("; {} lose more than 1 % of the goodput", slots_text(*fewer));
  }
  const Cause& cause = fewer->cause;
  const std::string counted = counted_miss(*fewer);
  if (!counted.empty()) return fmt::format("; with {}, {}", slots_text(*fewer), counted);
  return fmt::format("; with {}, {} {} is {} the limit{}", slots_text(*fewer), measure_of(cause),
                     format_percentile(result.slo.percentile), factor_text(cause.miss),
                     cause.kind == CauseKind::none ? "" : " (" + cause_word(cause.kind) + ")");
}

std::string seeds_text(const SizeResult& result) {
  return result.num_seeds > 1 ? fmt::format(" with all {} seeds", result.num_seeds) : "";
}

std::string why_smallest(const SizeResult& result, const ConfigResult& chosen) {
  const bool is_one = chosen.max_loras == 1;
  // Fewer may meet it, too, and serve less.
  const bool is_first = std::ranges::none_of(result.configs, [&](const ConfigResult& c) {
    return c.max_loras < chosen.max_loras && c.feasible && c.num_seeds_met == result.num_seeds;
  });
  std::string text =
      fmt::format("{} {} the fewest tried that {}{}{}", slots_text(chosen), is_one ? "is" : "are",
                  meets_text(result.slo, is_one), seeds_text(result),
                  is_first ? "" : " and lose less than 1 % of the best goodput");
  if (chosen.headroom >= 0) {
    text += fmt::format(", up to {} of this traffic", headroom_text(chosen.headroom));
  }
  return text + about_fewer(result, chosen);
}

std::string why_robust(const SizeResult& result, const ConfigResult& smallest,
                       const ConfigResult& chosen) {
  const bool holds_all = chosen.max_loras >= result.workload.num_adapters;
  return fmt::format("{} {}{} and {} to {} of this traffic, {}{} to {} for {}",
                     slots_text(smallest), meets_text(result.slo, smallest.max_loras == 1),
                     seeds_text(result), smallest.max_loras == 1 ? "holds" : "hold",
                     headroom_text(smallest.headroom), chosen.max_loras,
                     holds_all ? ", one for every adapter," : "", headroom_text(chosen.headroom),
                     kv_cost(smallest, chosen));
}

// What a smaller host costs: the row beside the chosen one that has the same slots.
std::string about_host(const SizeResult& result, const ConfigResult& chosen) {
  for (const ConfigResult& c : result.configs) {
    if (c.max_loras != chosen.max_loras || c.max_cpu_loras <= chosen.max_cpu_loras) continue;
    return fmt::format(". Places for {} in host memory ({}) lose nothing against {} ({})",
                       count_text(chosen.max_cpu_loras, "adapter"),
                       format_bytes(double(chosen.memory.host_bytes)), c.max_cpu_loras,
                       format_bytes(double(c.memory.host_bytes)));
  }
  return "";
}

// --- what would meet the SLO --------------------------------------------------------------------

// The limits that the worst seed keeps, in place of those that it does not.
std::string relaxed_slo(const SizeResult& result, size_t closest) {
  const ConfigResult& c = result.configs[closest];
  const auto relaxed = [&](double limit, const std::vector<double>& most, double shown) {
    const double worst = closest < most.size() ? most[closest] : shown;
    return limit > 0 && worst > limit ? limit_ms(worst) : "";
  };
  const std::string text = limits_text(
      result.slo.percentile, relaxed(result.slo.ttft_ms, result.ttft_max_ms, c.slo_ttft_ms),
      relaxed(result.slo.tpot_ms, result.tpot_max_ms, c.slo_tpot_ms));
  if (text.empty()) return "";
  return fmt::format("; {} {} {}", slots_text(c), c.max_loras == 1 ? "meets" : "meet", text);
}

std::string remedies_text(const SizeResult& result) {
  std::string text, missed;
  for (const Remedy& r : result.remedies) {
    if (r.result.meets_slo) {
      text += fmt::format("; {} (TTFT {} {})", r.flags, format_percentile(result.slo.percentile),
                          format_ms(r.result.slo_ttft_ms));
    } else {
      missed += fmt::format("{}{} ({})", missed.empty() ? "" : ", ", r.flags,
                            r.fits ? short_verdict(r.result) : "does not fit");
    }
  }
  return missed.empty() ? text : fmt::format("{}; not {}", text, missed);
}

// Changes that only memory was asked about.
std::string more_room_text(const SizeResult& result) {
  if (!result.more_room) return "";
  std::string text;
  for (const std::string& change : result.more_room->changes) {
    text += (text.empty() ? "" : ", ") + change;
  }
  return fmt::format("; not replayed, with {}: {}", count_text(result.more_room->max_loras, "slot"),
                     text);
}

// Where loads are the cause: what makes them fewer or shorter. No change does more than the replay
// in which they took no time.
std::string faster_loads(const SizeResult& result, const ConfigResult& c) {
  if (c.cause.kind != CauseKind::loads) return "";
  const int64_t num_adapters = result.workload.num_adapters;
  std::string change = "a faster disk (--disk-gbps)";
  if (c.max_cpu_loras < num_adapters && c.adapter_loads > num_adapters * c.fleet.num_replicas) {
    const double bytes = double(c.memory.host_bytes) / c.max_cpu_loras * double(num_adapters);
    change =
        fmt::format("host memory for all {} adapters ({}), which are now read {} times",
                    format_count(num_adapters), format_bytes(bytes), format_count(c.adapter_loads));
  } else if (c.waits.copy.of_late_time > c.waits.load.of_late_time) {
    change = "a faster link to the GPU (--h2d-gbps)";
  }
  return fmt::format("; {}: {} {} of {} the limit at best", change, measure_of(c.cause),
                     format_percentile(result.slo.percentile), factor_text(c.cause.miss_without));
}

std::string rank_cost_text(const SizeResult& result) {
  if (!result.rank_cost) return "";
  const RankCost& cost = *result.rank_cost;
  return fmt::format(
      ". max_lora_rank is {}, because {} allows {}: {} more per GPU than the trace's rank {} needs",
      cost.max_lora_rank, cost.engine, cost.allowed, format_bytes(double(cost.bytes)),
      cost.rank_of_trace);
}

// Without the semicolon before the first of them.
std::string listed(std::string changes) {
  if (changes.starts_with("; ")) changes.erase(0, 2);
  return changes;
}

std::string what_would_fit(const SizeResult& result) {
  return listed(remedies_text(result) + more_room_text(result));
}

std::string what_would_do(const SizeResult& result, size_t closest) {
  const std::string text =
      listed(relaxed_slo(result, closest) + faster_loads(result, result.configs[closest]) +
             remedies_text(result) + more_room_text(result));
  return text.empty() ? "" : "what would do: " + text;
}

}  // namespace

// --- figures ------------------------------------------------------------------------------------

namespace {

// With as many digits as tell it from 1: a miss of 1.0004 is not 1.00x.
std::string near_one(double factor) {
  if (factor == 1) return "1.00x";
  for (int digits = 2; digits <= 6; ++digits) {
    const double unit = std::pow(10, -digits);
    if (std::abs(factor - 1) > unit / 2) return fmt::format("{:.{}f}x", factor, digits);
  }
  return factor > 1 ? "just over 1x" : "just under 1x";
}

}  // namespace

std::string factor_text(double factor) {
  if (!std::isfinite(factor) || factor > 100) return "over 100x";
  if (factor < 0.1) return "under 0.1x";
  if (factor >= 9.95) return fmt::format("{:.0f}x", factor);
  if (std::abs(factor - 1) < 0.01) return near_one(factor);
  return factor < 1.995 ? fmt::format("{:.2f}x", factor) : fmt::format("{:.1f}x", factor);
}

std::string headroom_text(double headroom) {
  if (headroom >= rate_factor(kMostStep)) return "15x or more";
  return factor_text(headroom);
}

std::string share_text(double share) {
  if (share <= 0) return "none";
  if (share >= 1) return "all";
  if (share < 0.01) return "under 1 %";
  return share > 0.99 ? "over 99 %" : fmt::format("{:.0f} %", 100 * share);
}

std::string cause_word(CauseKind kind) { return kCauseNames[size_t(kind)].word; }

const char* name_of(CauseKind kind) { return kCauseNames[size_t(kind)].name; }

// --- phrases and sentences ----------------------------------------------------------------------

std::string verdict_text(const ConfigResult& c) {
  if (!c.feasible) return c.problem;
  if (c.meets_slo) return "meets the SLO";
  const std::string counted = counted_miss(c);
  if (!counted.empty()) return counted;
  const Cause& cause = c.cause;
  std::string text = miss_text(c);
  if (cause.kind == CauseKind::none) return cause.is_ttft ? text + longest_wait(c.waits) : text;
  if (c.num_seeds_met > 0) {
    text += fmt::format(" in {} of {} seeds", c.num_seeds - c.num_seeds_met, c.num_seeds);
  }
  return fmt::format("{}: {}", text, cause_word(cause.kind));
}

std::string cause_sentence(const Cause& c, const Slo& slo) {
  if (is_counted(c.kind)) {
    return fmt::format("{} {} {}", count_text(int64_t(c.figure), "request"),
                       c.figure == 1 ? "is" : "are", cause_word(c.kind));
  }
  return fmt::format("{} {} is {} the limit: {} it would be {}", measure_of(c),
                     format_percentile(slo.percentile), factor_text(c.miss), because(c),
                     factor_text(c.miss_without));
}

std::string reason(const SizeResult& result) {
  if (result.is_replay) return "";
  if (result.recommended >= 0) {
    const ConfigResult& chosen = result.configs[size_t(result.recommended)];
    const ConfigResult& smallest =
        result.configs[size_t(result.smallest >= 0 ? result.smallest : result.recommended)];
    const bool is_smallest = smallest.max_loras == chosen.max_loras;
    return (is_smallest ? why_smallest(result, chosen) : why_robust(result, smallest, chosen)) +
           about_host(result, chosen) + rank_cost_text(result);
  }
  const int32_t closest = best_goodput(result);
  if (closest < 0) {
    return result.configs.empty()
               ? "no configuration was tried"
               : fmt::format("no configuration fits: {}{}", result.configs.front().problem,
                             rank_cost_text(result));
  }
  const ConfigResult& c = result.configs[size_t(closest)];
  std::string text = fmt::format(
      "no configuration {}; the best goodput is {:.3g} requests/s with {}, where {:.1f} % of the "
      "requests {}",
      meets_text(result.slo, /*is_one=*/true), c.request_goodput, slots_text(c),
      100 * c.slo_attainment, has_limits(result.slo) ? "meet it" : "complete");
  if (c.cause.kind != CauseKind::none) text += ". There " + cause_sentence(c.cause, result.slo);
  return text + rank_cost_text(result);
}

std::string next_limit(const SizeResult& result) {
  if (result.is_replay) return "";
  if (result.recommended < 0) {
    const int32_t closest = best_goodput(result);
    if (closest < 0) return what_would_fit(result);
    const ConfigResult& c = result.configs[size_t(closest)];
    if (c.cause.kind == CauseKind::too_long) {
      return fmt::format("--max-model-len {} takes the longest request", result.longest_request);
    }
    if (is_counted(c.cause.kind)) return what_would_fit(result);
    return what_would_do(result, size_t(closest));
  }
  const ConfigResult& chosen = result.configs[size_t(result.recommended)];
  if (result.bounds && result.bounds->limit.kind != CauseKind::none) {
    return fmt::format("at {} of this traffic {}", factor_text(result.bounds->limit_factor),
                       cause_sentence(result.bounds->limit, result.slo));
  }
  if (chosen.headroom < rate_factor(kMostStep)) return "";
  return fmt::format("none up to {:.0f}x of this traffic, the most that was tried",
                     rate_factor(kMostStep));
}

std::string yardstick_sentence(const SizeResult& result) {
  if (!result.bounds || !result.bounds->base.feasible) return "";
  const std::string percentile = format_percentile(result.slo.percentile);
  const auto figures = [&](const ConfigResult& c) {
    return fmt::format("TTFT {0} {1}, TPOT {0} {2}", percentile, format_ms(c.slo_ttft_ms),
                       format_ms(c.slo_tpot_ms));
  };
  std::string text = fmt::format("the base model alone: {}", figures(result.bounds->base));
  if (result.workload.num_adapters == 0) return text;
  return text +
         fmt::format("; all adapters resident for free: {}", figures(result.bounds->resident));
}

std::string about_adapters(const SizeResult& result) {
  if (result.is_replay || result.workload.num_adapters > 0) return "";
  return "the trace names none, so there is nothing to size; give it some with --adapters 64 "
         "--popularity zipf:1 --ranks 16";
}

namespace {

std::string fraction_text(std::string_view what, double error) {
  return error < 0 ? "" : fmt::format(", {} +-{:.2g} %", what, 100 * error);
}

// What its authors found on runs that it was not fitted to.
std::string profile_caveat(const WorkloadSummary& w) {
  const ExpectedError& e = w.expected_error;
  if (e.num_runs < 1) return "the profile does not say how far it is off; loratory validate does";
  const std::string runs = count_text(int64_t(e.num_runs), "measured run");
  if (!w.not_of_profile.empty()) {
    return fmt::format("treat the sizes as a ranking: {} of {}, none of this {}", runs,
                       w.profile_of, w.not_of_profile);
  }
  std::string text = fraction_text("throughput", e.throughput) + fraction_text("ITL", e.itl) +
                     fraction_text("TTFT", e.ttft);
  if (e.short_ttft_ms >= 0) text += fmt::format(", short TTFTs +-{:.2g} ms", e.short_ttft_ms);
  if (text.empty()) return runs + " of " + w.profile_of;
  return fmt::format("{}: {} of {}{}{}", text.substr(2), runs, w.profile_of,
                     e.how.empty() ? "" : ", ", e.how);
}

}  // namespace

std::string caveat(const SizeResult& result) {
  const std::string& times = result.workload.cost_model;
  if (!result.workload.profile_of.empty()) return profile_caveat(result.workload);
  if (times.starts_with("operators ")) {
    return "treat the sizes as a ranking: the GPU's operators are measured, the host's share of a "
           "step is an estimate (docs/cost_model.md); for milliseconds fit a --profile";
  }
  if (times != "roofline") return "";
  return "treat the sizes as a ranking: the roofline's mean step was 26 % off in the median of 160 "
         "measured servers (docs/cost_model.md); for milliseconds fit a --profile";
}

}  // namespace loratory::sim::report
