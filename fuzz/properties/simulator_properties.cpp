// The event loop: jumping over regular steps against running every one of them, and twice the same
// run (P64). Random small workloads from the corners (tiny pools, clocks that starve at once,
// cancellations, pins, unloads), with step times that make times coincide.
#include <algorithm>
#include <cmath>

#include "fuzz/support/seeded_case.hpp"
#include "fuzz/support/simulator_case.hpp"

namespace loratory::sim {

inline bool operator==(const Decision& a, const Decision& b) {
  return EventLog::record_of(a) == EventLog::record_of(b);
}

namespace {

struct Run {
  std::vector<Decision> decisions;
  std::string hash;
  ConfigResult result;
};

Run run(const World& world, const StepTimeModel& times, bool fast) {
  SimulationConfig config = world.config;
  config.fast = fast;
  Simulator simulator(world.trace, config, times);
  for (const ScheduledOp& op : world.ops) simulator.schedule(op);
  simulator.run();
  Run r{simulator.log().decisions(), simulator.log().hash(), {}};
  simulator.metrics().fill(r.result, {.ttft_ms = 0.01, .tpot_ms = 0.0005},
                           config.scheduler.block_size,
                           /*keep_details=*/true);
  return r;
}

void require_equal(const LatencySummary& a, const LatencySummary& b) {
  RC_ASSERT(a.mean_ms == b.mean_ms);
  RC_ASSERT(a.p50_ms == b.p50_ms);
  RC_ASSERT(a.p90_ms == b.p90_ms);
  RC_ASSERT(a.p95_ms == b.p95_ms);
  RC_ASSERT(a.p99_ms == b.p99_ms);
  RC_ASSERT(a.pslo_ms == b.pslo_ms);
  RC_ASSERT(a.std_ms == b.std_ms);
}

void require_equal_figures(const ConfigResult& a, const ConfigResult& b) {
  static constexpr double ConfigResult::*kReals[] = {&ConfigResult::duration_s,
                                                     &ConfigResult::request_throughput,
                                                     &ConfigResult::output_throughput,
                                                     &ConfigResult::request_goodput,
                                                     &ConfigResult::slo_attainment,
                                                     &ConfigResult::slo_ttft_ms,
                                                     &ConfigResult::slo_tpot_ms,
                                                     &ConfigResult::adapter_gpu_hit_ratio,
                                                     &ConfigResult::mean_batch_seqs,
                                                     &ConfigResult::gpu_busy_fraction,
                                                     &ConfigResult::adapter_cpu_hit_ratio,
                                                     &ConfigResult::prefix_hit_ratio_tokens,
                                                     &ConfigResult::prefix_hit_ratio_blocks};
  static constexpr int64_t ConfigResult::*kCounts[] = {
      &ConfigResult::completed,       &ConfigResult::cancelled,      &ConfigResult::failed,
      &ConfigResult::adapter_loads,   &ConfigResult::adapter_copies, &ConfigResult::num_steps,
      &ConfigResult::num_preemptions, &ConfigResult::num_drains,     &ConfigResult::max_waiting};
  for (const auto field : kReals) RC_ASSERT((a.*field) == (b.*field));
  for (const auto field : kCounts) RC_ASSERT((a.*field) == (b.*field));
}

// Every field that a view draws or a record states.
void require_equal(const ConfigResult& a, const ConfigResult& b) {
  require_equal_figures(a, b);
  require_equal(a.ttft, b.ttft), require_equal(a.tpot, b.tpot), require_equal(a.itl, b.itl);
  require_equal(a.e2el, b.e2el), require_equal(a.queue, b.queue);
  RC_ASSERT(a.ttft_cdf_ms == b.ttft_cdf_ms);
  const auto same_sample = [](const TimelineSample& x, const TimelineSample& y) {
    return x.time_ns == y.time_ns && x.num_running == y.num_running &&
           x.num_waiting == y.num_waiting && x.num_adapters_gpu == y.num_adapters_gpu &&
           x.kv_blocks_used == y.kv_blocks_used;
  };
  RC_ASSERT(std::ranges::equal(a.timeline, b.timeline, same_sample));
  const auto same_span = [](const SlotSpan& x, const SlotSpan& y) {
    return x.begin_ns == y.begin_ns && x.end_ns == y.end_ns && x.adapter == y.adapter &&
           x.slot == y.slot;
  };
  RC_ASSERT(std::ranges::equal(a.slot_spans, b.slot_spans, same_span));
  const auto same_record = [](const RequestRecord& x, const RequestRecord& y) {
    return x.first_scheduled_ns == y.first_scheduled_ns && x.first_token_ns == y.first_token_ns &&
           x.finish_ns == y.finish_ns && x.output_tokens == y.output_tokens &&
           x.cached_tokens == y.cached_tokens && x.num_preemptions == y.num_preemptions &&
           x.tier_at_arrival == y.tier_at_arrival && x.outcome == y.outcome;
  };
  RC_ASSERT(std::ranges::equal(a.requests, b.requests, same_record));
}

template <typename Kind>
int64_t count(const Run& r) {
  return std::ranges::count_if(r.decisions, [](const Decision& d) { return d.is<Kind>(); });
}

std::string text(const std::vector<Decision>& decisions, size_t from, size_t count) {
  std::string out;
  for (size_t i = from; i < std::min(decisions.size(), from + count); ++i) {
    out += "\n  " + EventLog::line_of(decisions[i]);
  }
  return out;
}

void require_equal_logs(const Run& a, const Run& b) {
  const auto [x, y] = std::ranges::mismatch(a.decisions, b.decisions);
  const size_t first = size_t(x - a.decisions.begin());
  if (x != a.decisions.end() || y != b.decisions.end()) {
    RC_LOG() << "first difference:" << text(a.decisions, first, 3) << "\nagainst"
             << text(b.decisions, first, 3) << '\n';
    RC_FAIL("the event logs differ");
  }
  RC_ASSERT(a.hash == b.hash);
}

RC_GTEST_PROP(Simulator, JumpingEqualsStepping, ()) {
  const SeededCase c = any_seeded_case(60);
  Draw draw(c.seed);
  const World world = random_world(draw, c.num_ops);
  const LinearTime times(draw, world.quantum_ns);
  const Run fast = run(world, times, true), slow = run(world, times, false);
  RC_CLASSIFY(count<decision::Preemption>(slow) > 0, "preempts");
  RC_CLASSIFY(count<decision::Drain>(slow) > 0, "drains");
  RC_CLASSIFY(count<decision::Reservation>(slow) > 0, "reserves");
  RC_CLASSIFY(count<decision::Eviction>(slow) > 0, "evicts adapters");
  RC_CLASSIFY(count<decision::Unload>(slow) > 0, "unloads");
  RC_CLASSIFY(world.quantum_ns > 1, "coarse times");
  RC_CLASSIFY(world.config.scheduler.load_mode == LoadMode::blocking, "blocking");
  require_equal_logs(fast, slow);
  require_equal(fast.result, slow.result);
}

// Every gap between two tokens of a request is counted once: together they are the time from its
// first token to its last. Preempted requests have gaps over steps they were not in.
RC_GTEST_PROP(Simulator, InterTokenLatenciesAddUp, ()) {
  const SeededCase c = any_seeded_case(60);
  Draw draw(c.seed);
  World world = random_world(draw, c.num_ops);
  for (TraceRequest& r : world.trace.requests) r.cancel_ns = kNever;
  const LinearTime times(draw, world.quantum_ns);
  const Run r = run(world, times, draw.one_in(2));
  RC_CLASSIFY(r.result.num_preemptions > 0, "preempts");
  int64_t sum_ns = 0, num_gaps = 0;
  for (const RequestRecord& record : r.result.requests) {
    if (record.output_tokens < 2) continue;
    sum_ns += record.finish_ns - record.first_token_ns;
    num_gaps += record.output_tokens - 1;
  }
  const double mean_ms = num_gaps == 0 ? 0 : double(sum_ns) / double(num_gaps) * 1e-6;
  RC_LOG() << fmt::format("mean {} of {} gaps against {}\n", mean_ms, num_gaps,
                          r.result.itl.mean_ms);
  RC_ASSERT(std::abs(r.result.itl.mean_ms - mean_ms) <= 1e-9 * mean_ms);
}

// [5.40]: the hash of a run depends on nothing but the trace and the configuration.
RC_GTEST_PROP(Simulator, TwiceIsTheSame, ()) {
  const SeededCase c = any_seeded_case(40);
  Draw draw(c.seed), draw_again(c.seed);
  const World world = random_world(draw, c.num_ops), again = random_world(draw_again, c.num_ops);
  const LinearTime times(draw, world.quantum_ns), times_again(draw_again, again.quantum_ns);
  RC_ASSERT(run(world, times, true).hash == run(again, times_again, true).hash);
}

// The log accounts for every request: it arrives once, ends at most once after its arrival, has its
// first token at most once, and what it generated is what the trace asks for, unless cut short.
RC_GTEST_PROP(Simulator, EveryRequestEndsOnce, ()) {
  const SeededCase c = any_seeded_case(40);
  Draw draw(c.seed);
  const World world = random_world(draw, c.num_ops);
  const LinearTime times(draw, world.quantum_ns);
  const Run r = run(world, times, draw.one_in(2));
  std::vector<int> arrived(world.trace.requests.size()), ended(arrived), first(arrived);
  int64_t time_ns = 0;
  for (const Decision& d : r.decisions) {
    RC_ASSERT(d.time_ns >= time_ns);
    time_ns = d.time_ns;
    if (d.request == kNoRequestId) continue;
    RC_ASSERT(ended[d.request] == 0);  // nothing happens to it afterwards
    arrived[d.request] += d.is<decision::Arrival>();
    first[d.request] += d.is<decision::FirstToken>();
    const auto* finish = d.get_if<decision::Finish>();
    if (finish == nullptr) continue;
    ++ended[d.request];
    const bool cut = finish->reason != FinishReason::length;
    RC_ASSERT(cut || finish->num_generated == world.trace.requests[d.request].output_tokens);
  }
  for (size_t i = 0; i < arrived.size(); ++i) {
    RC_ASSERT(arrived[i] == ended[i]);
    RC_ASSERT(arrived[i] == (r.result.requests[i].outcome != RequestOutcome::rejected));
    RC_ASSERT(first[i] <= 1);
  }
  RC_ASSERT(r.result.completed + r.result.cancelled + r.result.failed ==
            int64_t(world.trace.requests.size()));
}

}  // namespace
}  // namespace loratory::sim
