#include "scheduler_sim/sizing/blame.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "reference/base/integers.hpp"
#include "scheduler_sim/workload/deterministic_math.hpp"
#include "scheduler_sim/workload/random.hpp"

namespace loratory::sim {
namespace {

constexpr double kNoWorse = 2;   // than the base model alone: its cause
constexpr double kAsGood = 0.9;  // of what the best removal recovers: explains as much
constexpr int64_t kMostPeakNs = 10'000'000'000;

// A removal: how much the miss is without it, and how long late requests waited for it.
struct Trial {
  CauseKind kind;
  double miss;
  double waiting;
  double figure;
};

// The trial that explains a miss above the floor; none if nothing does alone.
std::optional<Trial> explanation(const std::vector<Trial>& trials, double miss, double floor) {
  double best = INFINITY;
  for (const Trial& trial : trials) best = std::min(best, std::max(trial.miss, floor));
  if (best > std::sqrt(miss * floor)) return std::nullopt;  // not half of the way
  const auto recovered = [&](double rest) { return det_log(miss / rest); };
  std::optional<Trial> chosen;
  for (const Trial& trial : trials) {
    if (recovered(std::max(trial.miss, floor)) < kAsGood * recovered(best)) continue;
    if (!chosen || trial.waiting > chosen->waiting) chosen = trial;
  }
  return chosen;
}

Cause named(Cause cause, const Trial& trial) {
  cause.kind = trial.kind;
  cause.miss_without = trial.miss;
  cause.figure = trial.figure;
  return cause;
}

// No percentile is to blame where requests fail or none completes.
bool is_counted(const ConfigResult& missed) { return missed.failed > 0 || missed.completed == 0; }

// Requests that were refused, being larger than the cache or longer than max_model_len, or were all
// cancelled.
Cause counted_cause(Cause cause, const Trace& trace, const EngineSpec& engine,
                    const ConfigResult& missed) {
  if (missed.failed == 0) {
    cause.kind = CauseKind::none_completes;
    cause.figure = double(missed.cancelled);
    return cause;
  }
  const auto too_large = std::ranges::count_if(trace.requests, [&](const TraceRequest& r) {
    const int64_t tokens = int64_t{r.prompt_tokens} + r.output_tokens - (r.output_tokens > 0);
    return ceil_div(tokens, int64_t{engine.scheduler.block_size}) > missed.memory.kv_blocks;
  });
  cause.kind = too_large > 0 ? CauseKind::too_large : CauseKind::too_long;
  cause.figure = double(missed.failed);
  return cause;
}

// Requests in the busiest window of 10 s, or a tenth of a short trace, over as many as a window has
// on average.
double peak_of(const Trace& trace) {
  const auto& requests = trace.requests;
  const int64_t duration_ns = std::max<int64_t>(1, requests.back().arrival_ns);
  const int64_t window_ns = std::max<int64_t>(1, std::min(kMostPeakNs, duration_ns / 10));
  size_t first = 0, most = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    while (requests[i].arrival_ns - requests[first].arrival_ns >= window_ns) ++first;
    most = std::max(most, i + 1 - first);
  }
  const double mean = double(requests.size()) * double(window_ns) / double(duration_ns);
  return double(most) / std::max(1.0, mean);
}

// Replays of one trace on one point, by what they are spared.
struct Bench {
  const Trace& trace;
  const EngineSpec& engine;
  EnginePoint point;
  const Slo& slo;

  double miss(const Spared& spared) const {
    return replay(trace, engine, point, slo, ReplayDetail::metrics, spared).result.cause.miss;
  }
};

bool may_lack_kv(const ConfigResult& r, const EngineSpec& engine) {
  return !waits_are_known(engine) || r.num_preemptions > 0 || r.waits.batch.requests > 0;
}

bool fills_the_seats(const ConfigResult& r, const EngineSpec& engine) {
  return engine.fleet || r.max_running >= int64_t{engine.scheduler.max_num_seqs};
}

// The worst of three: a trace has peaks if it is worse than any Poisson process.
double poisson_miss(const Bench& bench) {
  double worst = 0;
  for (const uint64_t seed : {0, 1, 2}) {
    const Trace smooth = with_poisson_arrivals(bench.trace, seed);
    worst = std::max(worst, Bench{smooth, bench.engine, bench.point, bench.slo}.miss({}));
  }
  return worst;
}

// `base`, the base model alone, misses.
Cause cause_of_base(const Bench& bench, const ConfigResult& base) {
  Cause cause = base.cause;
  cause.miss_of_base = cause.miss;
  if (is_counted(base)) return counted_cause(cause, bench.trace, bench.engine, base);
  std::vector<Trial> trials;
  if (may_lack_kv(base, bench.engine)) {
    trials.push_back({CauseKind::kv_cache, bench.miss({.kv_limit = true}), 0, 0});
  }
  if (fills_the_seats(base, bench.engine)) {
    trials.push_back({CauseKind::seats, bench.miss({.seats = true}), 0, 0});
  }
  trials.push_back({CauseKind::load_peaks, poisson_miss(bench), 0, peak_of(bench.trace)});
  if (const auto found = explanation(trials, cause.miss, 1)) return named(cause, *found);
  return named(cause, {CauseKind::gpu_speed, bench.miss({.half_time = true}), 0, 0});
}

std::vector<Trial> trials_of(const Bench& bench, const ConfigResult& missed) {
  const Waits& waits = missed.waits;
  const bool waits_show = waits_are_known(bench.engine);
  const auto shown = [&](double share) { return waits_show ? share : kUnknownFigure; };
  std::vector<Trial> trials;
  const double moving = waits.load.of_late_time + waits.copy.of_late_time;
  if (!waits_show || waits.load.requests + waits.copy.requests > 0) {
    const bool is_disk = waits.load.of_late_time >= waits.copy.of_late_time;
    trials.push_back({CauseKind::loads, bench.miss({.load_time = true}), moving,
                      shown(is_disk ? waits.load.requests : waits.copy.requests)});
  }
  if (may_lack_kv(missed, bench.engine)) {
    trials.push_back(
        {CauseKind::kv_cache, bench.miss({.kv_limit = true}), waits.batch.of_late_time, 0});
  }
  if (fills_the_seats(missed, bench.engine)) {
    trials.push_back({CauseKind::seats, bench.miss({.seats = true}), waits.batch.of_late_time, 0});
  }
  if (!waits_show || waits.slot.requests > 0) {
    trials.push_back({CauseKind::slots, bench.miss({.slots = true}), waits.slot.of_late_time,
                      shown(waits.slot.requests)});
  }
  return trials;
}

EngineSpec without_pins(const EngineSpec& engine) {
  EngineSpec bare = engine;
  bare.pins.clear();
  return bare;
}

}  // namespace

Trace without_adapters(const Trace& trace) {
  Trace bare = trace;
  bare.adapters.clear();
  for (TraceRequest& r : bare.requests) r.adapter = kBaseModel;
  return bare;
}

Trace with_poisson_arrivals(const Trace& trace, uint64_t seed) {
  Trace smooth = trace;
  if (trace.requests.empty()) return smooth;
  const RandomStream gaps(seed, Purpose::arrivals);
  std::vector<double> times;
  double sum = 0;
  for (size_t i = 0; i < trace.requests.size(); ++i) times.push_back(sum += gaps.exponential(i));
  const double scale = double(trace.requests.back().arrival_ns) / sum;
  for (size_t i = 0; i < times.size(); ++i) {
    TraceRequest& r = smooth.requests[i];
    const int64_t patience = r.cancel_ns - r.arrival_ns;
    r.arrival_ns = int64_t(times[i] * scale);
    if (r.cancel_ns != kNever) r.cancel_ns = r.arrival_ns + patience;
  }
  return smooth;
}

Yardsticks measure_yardsticks(const Trace& trace, const EngineSpec& engine, const Slo& slo) {
  const EngineSpec bare = without_pins(engine);
  const Trace base_trace = without_adapters(trace);
  const Bench base{base_trace, bare, {}, slo};
  Yardsticks y;
  y.base = replay(base_trace, bare, {}, slo).result;
  y.resident =
      replay(trace, bare, {}, slo, ReplayDetail::metrics, {.slots = true, .load_time = true})
          .result;
  if (y.base.feasible && !y.base.meets_slo) y.base_cause = cause_of_base(base, y.base);
  return y;
}

Cause find_cause(const Trace& trace, const EngineSpec& engine, const ConfigResult& missed,
                 const Slo& slo, const Yardsticks& yardsticks) {
  Cause cause = miss_of(missed, slo);
  const double base_miss = yardsticks.base.cause.miss;
  cause.miss_of_base = base_miss;
  if (is_counted(missed)) return counted_cause(cause, trace, engine, missed);
  if (base_miss > 1 && cause.miss <= kNoWorse * base_miss) {
    cause.kind = yardsticks.base_cause.kind;
    cause.miss_without = yardsticks.base_cause.miss_without;
    cause.figure = yardsticks.base_cause.figure;
    return cause;
  }
  const double floor = std::max(1.0, base_miss);
  const Bench bench{trace, engine, {missed.max_loras, missed.max_cpu_loras}, slo};
  if (const auto found = explanation(trials_of(bench, missed), cause.miss, floor)) {
    return named(cause, *found);
  }
  const Trial resident{CauseKind::slots_and_loads, yardsticks.resident.cause.miss, 0, 0};
  if (explanation({resident}, cause.miss, floor)) return named(cause, resident);
  return named(cause, {CauseKind::lora_compute, base_miss, 0, 0});
}

}  // namespace loratory::sim
