// Injected bottlenecks are named. A case is a seed: a workload and an engine that meet their SLO
// with room, and one thing made worse step by step until they do not:
//
//   slow disk   the host forgets adapters, and reads take longer
//   tiny slots  one slot after the other goes
//   tiny KV     blocks go
//   slow GPU    every step takes longer, until the base model alone misses
//   bursts      the requests of each minute come in its first seconds, until it does
//
// What is not made worse is ample: a slot for every adapter, and, but for the slow disk, reads that
// take no time to speak of. find_cause must name the thing. It may name another where a case has
// two ways out: fewer than one in 20.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>

#include "fuzz/support/draw.hpp"
#include "scheduler_sim/cost/roofline.hpp"
#include "scheduler_sim/sizing/blame.hpp"
#include "scheduler_sim/workload/generate.hpp"

namespace loratory::sim {
namespace {

enum class Injury { slow_disk, tiny_slots, tiny_kv, slow_gpu, bursts };
constexpr std::array kInjuries = {Injury::slow_disk, Injury::tiny_slots, Injury::tiny_kv,
                                  Injury::slow_gpu, Injury::bursts};

CauseKind expected(Injury injury) {
  switch (injury) {
    case Injury::slow_disk:
      return CauseKind::loads;
    case Injury::tiny_slots:
      return CauseKind::slots;
    case Injury::tiny_kv:
      return CauseKind::kv_cache;
    case Injury::slow_gpu:
      return CauseKind::gpu_speed;
    case Injury::bursts:
      return CauseKind::load_peaks;
  }
  return CauseKind::none;
}

class Slowed final : public StepTimeModel {
 public:
  Slowed(const ModelSpec& model, const GpuSpec& gpu, double factor)
      : model_(model, gpu, {}), factor_(factor) {}
  int64_t step_ns(const BatchShape& shape) const override {
    return int64_t(double(model_.step_ns(shape)) * factor_);
  }

 private:
  RooflineModel model_;
  double factor_;
};

struct Case {
  Trace trace;
  EngineSpec engine;
  EnginePoint point;
  Slo slo;

  void set_speed(double factor) {
    engine.make_step_time = [model = engine.model, gpu = engine.gpu, factor](EnginePoint) {
      return std::make_unique<Slowed>(model, gpu, factor);
    };
  }
};

Case healthy_case(Draw& draw) {
  GenerateOptions load;
  load.seed = uint64_t(draw(1 << 30));
  load.arrivals.rate_rps = double(draw.between(2, 6));
  load.limit.num_requests = 600;
  load.num_adapters = uint32_t(draw.between(12, 60));
  load.popularity = parse_popularity(draw.one_of({"uniform", "zipf:0.8", "zipf:1", "zipf:1.2"}));
  load.ranks = {draw.one_of({8u, 16u, 32u, 64u})};
  load.prompt_tokens =
      parse_length_law(draw.one_of({"lognormal:600:400", "lognormal:1200:900"}), "prompts");
  load.output_tokens =
      parse_length_law(draw.one_of({"lognormal:100:60", "lognormal:200:150"}), "outputs");
  Case c;
  c.trace = generate(load);
  c.engine.model = load_model_spec("Llama-3.1-8B");
  c.engine.gpu = parse_gpu_spec("H100-80");
  c.engine.memory.max_lora_rank = load.ranks[0];
  c.set_speed(1);
  const auto all = int32_t(c.trace.adapters.size());
  c.point = {all, all};
  c.engine.loads.disk_bytes_per_s = 16'000'000'000;
  c.slo = {.ttft_ms = double(draw.between(400, 1000)), .tpot_ms = double(draw.between(30, 60))};
  return c;
}

// The same requests; those of each minute come within its first seconds.
Trace gathered(Trace trace, double width) {
  constexpr int64_t kMinute = 60'000'000'000;
  for (TraceRequest& r : trace.requests) {
    r.arrival_ns =
        r.arrival_ns / kMinute * kMinute + int64_t(double(r.arrival_ns % kMinute) * width);
  }
  return trace;
}

uint32_t blocks_of_longest(const Trace& trace) {
  uint32_t longest = 0;
  for (const TraceRequest& r : trace.requests) {
    longest = std::max(longest, (r.prompt_tokens + r.output_tokens) / 16 + 1);
  }
  return longest;
}

// `degree` times as bad; KV blocks no fewer than the longest request needs.
Case injured(Case c, Injury injury, int degree) {
  const double factor = std::ldexp(1.0, degree);
  switch (injury) {
    case Injury::slow_disk:
      c.point.max_loras = c.point.max_cpu_loras = std::max(1, 2 * c.point.max_loras / 3);
      c.engine.loads.disk_bytes_per_s = int64_t(4e9 / factor);
      break;
    case Injury::tiny_slots:
      c.point.max_loras = std::max(1, int(c.point.max_loras / factor));
      break;
    case Injury::tiny_kv:
      c.engine.forced_kv_blocks = std::max(blocks_of_longest(c.trace), uint32_t(8000 / factor));
      break;
    case Injury::slow_gpu:
      c.set_speed(std::sqrt(factor));
      break;
    case Injury::bursts:
      c.trace = gathered(std::move(c.trace), 1 / factor);
      break;
  }
  return c;
}

struct Score {
  std::map<CauseKind, int> named;
  int cases = 0, right = 0, never_missed = 0, unhealthy = 0;
};

void judge(uint64_t seed, Injury injury, Score& score) {
  Draw draw(seed);
  const Case healthy = healthy_case(draw);
  if (!would_meet(healthy.trace, healthy.engine, healthy.point, healthy.slo)) {
    ++score.unhealthy;
    return;
  }
  for (int degree = 1; degree <= 12; ++degree) {
    const Case c = injured(healthy, injury, degree);
    const ConfigResult missed = replay(c.trace, c.engine, c.point, c.slo).result;
    if (missed.failed > 0) break;
    if (missed.cause.miss < 1.25) continue;
    const Yardsticks yardsticks = measure_yardsticks(c.trace, c.engine, c.slo);
    const bool is_of_base = injury == Injury::slow_gpu || injury == Injury::bursts;
    if (is_of_base && yardsticks.base.cause.miss < 1.25) continue;
    const Cause cause = find_cause(c.trace, c.engine, missed, c.slo, yardsticks);
    ++score.cases;
    ++score.named[cause.kind];
    score.right += cause.kind == expected(injury);
    if (cause.kind != expected(injury) && std::getenv("LORATORY_VERBOSE") != nullptr) {
      fmt::print(
          "REPRO: judge({}, Injury({})): degree {}, kind {}, miss {:.2f}, without it {:.2f}, "
          "base {:.2f}\n",
          seed, int(injury), degree, int(cause.kind), cause.miss, cause.miss_without,
          cause.miss_of_base);
    }
    return;
  }
  ++score.never_missed;
}

// LORATORY_CASES=1000 for more; LORATORY_VERBOSE=1 prints those that are named otherwise.
TEST(FindCause, NamesInjectedBottlenecks) {
  const char* more = std::getenv("LORATORY_CASES");
  const int num_cases = more == nullptr ? 8 : std::atoi(more);
  int cases = 0, right = 0;
  for (const Injury injury : kInjuries) {
    Score score;
    for (int i = 0; i < num_cases; ++i) judge(uint64_t(i) * 5 + uint64_t(injury), injury, score);
    fmt::print("injury {}: {} of {} right, {} without a miss, {} unhealthy;", int(injury),
               score.right, score.cases, score.never_missed, score.unhealthy);
    for (const auto& [kind, count] : score.named) fmt::print(" kind {}: {}", int(kind), count);
    fmt::print("\n");
    cases += score.cases, right += score.right;
  }
  EXPECT_GE(cases, num_cases * 2);  // most cases can be made to miss
  EXPECT_GE(right, 0.95 * cases) << "of " << cases;
}

}  // namespace
}  // namespace loratory::sim
