// The event loop: jumping over regular steps against running every one of them, and twice the same
// run (P64). Random small workloads from the corners (tiny pools, clocks that starve at once,
// cancellations, pins, unloads), with step times that make times coincide.
#include <algorithm>
#include <cmath>

#include "fuzz/support/scheduler_cases.hpp"
#include "fuzz/support/seeded_case.hpp"
#include "scheduler_sim/simulator/simulator.hpp"

namespace loratory::sim {

inline bool operator==(const Decision& a, const Decision& b) {
  return EventLog::record_of(a) == EventLog::record_of(b);
}

namespace {

// A sum over the shape, rounded up to `quantum_ns`: coarse ones let steps, arrivals and transfers
// end at the same time.
class LinearTime : public StepTimeModel {
 public:
  explicit LinearTime(Draw& draw, int64_t quantum_ns) : quantum_ns_(quantum_ns) {
    for (int64_t& w : weights_) w = draw.one_in(2) ? 0 : draw(200);
  }
  int64_t step_ns(const BatchShape& s) const override {
    const int64_t parts[] = {1,
                             s.num_seqs,
                             s.num_tokens,
                             s.decode_context_tokens,
                             s.prefill_pairs,
                             s.num_adapters,
                             s.lora_rank_tokens};
    int64_t sum = 1;
    for (size_t i = 0; i < std::size(parts); ++i) sum += weights_[i] * parts[i];
    return (sum + quantum_ns_ - 1) / quantum_ns_ * quantum_ns_;
  }

 private:
  int64_t quantum_ns_;
  int64_t weights_[7];
};

struct World {
  Trace trace;
  SimulationConfig config;
  std::vector<ScheduledOp> ops;
  int64_t quantum_ns;
};

int64_t random_time(Draw& draw, const World& world) {
  return draw(20'000) / world.quantum_ns * world.quantum_ns;
}

void add_request(Draw& draw, World& world) {
  Trace& t = world.trace;
  TraceRequest r;
  r.arrival_ns = random_time(draw, world);
  if (draw.one_in(6)) r.cancel_ns = r.arrival_ns + random_time(draw, world);
  r.prompt_tokens = uint32_t(draw.between(1, 12));
  // Longer than the others now and then, so that there are stretches to jump over.
  r.output_tokens = uint32_t(draw.one_in(3) ? draw(60) : draw(8));
  r.priority = int32_t(draw.between(-1, 1));
  if (!draw.one_in(4)) r.adapter = AdapterIndex(draw(int64_t(t.adapters.size())));
  r.content_begin = t.block_ids.size();
  const auto num_blocks = (r.prompt_tokens + t.block_tokens - 1) / t.block_tokens;
  for (uint32_t i = 0; i < num_blocks; ++i) t.block_ids.push_back(uint64_t(draw(2)));
  r.content_count = num_blocks;
  t.requests.push_back(r);
}

World random_world(Draw& draw, int num_requests) {
  World w;
  w.quantum_ns = draw.one_of<int64_t>({1, 1, 100, 1000});
  SchedulerConfig& s = w.config.scheduler;
  s = random_scheduler_config(draw);
  s.max_model_len = 72;
  s.num_blocks = 1 + (72 + s.block_size) / s.block_size + uint32_t(draw.one_of({0, 5, 20, 200}));
  if (!s.chunked_prefill) s.max_num_batched_tokens = 72 + s.max_num_seqs;
  if (s.t_starve_ns != kNever) s.t_starve_ns *= 20;
  w.config.keep_log = true;
  w.config.loads.num_workers = s.residency.num_load_workers;
  w.config.loads.share_disk = draw.one_in(2);
  w.config.loads.disk_latency_ns = draw(3) * 1000;
  w.config.loads.h2d_latency_ns = draw(3) * 500;
  w.config.loads.disk_bytes_per_s = w.config.loads.h2d_bytes_per_s = 1'000'000'000;  // 1 byte/ns
  for (int i = 0; i < 6; ++i) {
    w.trace.adapters.push_back({fmt::format("a{}", i), 8});
    w.config.adapter_bytes.push_back(draw.one_of<int64_t>({0, 1000, 1000, 3000}));
    w.config.adapter_ranks.push_back(uint32_t(draw.one_of({8, 16})));
  }
  w.trace.block_tokens = s.block_size * uint32_t(draw.between(1, 2));
  for (int i = 0; i < num_requests; ++i) add_request(draw, w);
  std::ranges::stable_sort(w.trace.requests, {}, &TraceRequest::arrival_ns);
  for (int64_t i = draw(6); i > 0; --i) {
    using Kind = ScheduledOp::Kind;
    const Kind kind = draw.one_of({Kind::pin, Kind::pin, Kind::unpin, Kind::unload});
    w.ops.push_back({random_time(draw, w), kind, uint64_t(draw(6))});
  }
  return w;
}

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
  RC_ASSERT(a.p99_ms == b.p99_ms);
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
