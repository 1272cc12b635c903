#include "scheduler_sim/metrics/collector.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "scheduler_sim/metrics/quantiles.hpp"

namespace loratory::sim {
namespace {

constexpr int64_t kNumSamples = 600;  // points of the timeline
constexpr double kMsPerNs = 1e-6;     // milliseconds per nanosecond

RequestOutcome outcome_of(FinishReason reason) {
  if (reason == FinishReason::abort) return RequestOutcome::cancelled;
  return reason == FinishReason::error ? RequestOutcome::failed : RequestOutcome::completed;
}

struct Latencies {
  double ttft_ms, tpot_ms, e2el_ms, queue_ms;
  bool has_first_token, has_tpot;
};

// A client that left before its first token has waited so long for it in vain.
bool left_without_token(const RequestRecord& r) {
  return r.outcome == RequestOutcome::cancelled && r.first_token_ns < 0;
}

double vain_wait_ms(const RequestRecord& r) {
  return double(r.finish_ns - r.arrival_ns) * kMsPerNs;
}

Latencies latencies_of(const RequestRecord& r) {
  const double tokens_after_first = double(r.output_tokens) - 1;
  return {.ttft_ms = double(r.first_token_ns - r.arrival_ns) * kMsPerNs,
          .tpot_ms =
              double(r.finish_ns - r.first_token_ns) * kMsPerNs / std::max(1.0, tokens_after_first),
          .e2el_ms = double(r.finish_ns - r.arrival_ns) * kMsPerNs,
          .queue_ms = double(r.first_scheduled_ns - r.arrival_ns) * kMsPerNs,
          .has_first_token = r.first_token_ns >= 0,
          .has_tpot = r.output_tokens >= 2};
}

bool meets(const Slo& slo, const Latencies& l) {
  const bool ttft_ok = slo.ttft_ms <= 0 || !l.has_first_token || l.ttft_ms <= slo.ttft_ms;
  const bool tpot_ok = slo.tpot_ms <= 0 || !l.has_tpot || l.tpot_ms <= slo.tpot_ms;
  return ttft_ok && tpot_ok;
}

// Of completed requests, each over [arrival, last token), as `vllm bench serve` counts them.
int64_t most_concurrent(const std::vector<RequestRecord>& records) {
  std::vector<int64_t> arrivals, ends;
  for (const RequestRecord& r : records) {
    if (r.outcome != RequestOutcome::completed) continue;
    arrivals.push_back(r.arrival_ns);
    ends.push_back(r.finish_ns);
  }
  std::ranges::sort(arrivals);
  std::ranges::sort(ends);
  size_t most = 0, ended = 0;
  for (size_t i = 0; i < arrivals.size(); ++i) {
    while (ends[ended] <= arrivals[i]) ++ended;
    most = std::max(most, i + 1 - ended);
  }
  return int64_t(most);
}

}  // namespace

ArrivalTier arrival_tier(const Residency& residency, Uid uid) {
  const AdapterRef ref = residency.find_uid(uid);
  switch (ref == kBaseRef ? AdapterState::on_disk : residency.state(ref)) {
    case AdapterState::on_gpu:
      return ArrivalTier::gpu;
    case AdapterState::on_cpu:
    case AdapterState::copying:
      return ArrivalTier::cpu;
    case AdapterState::on_disk:
    case AdapterState::loading:
      return ArrivalTier::disk;
  }
  return ArrivalTier::disk;
}

MetricsCollector::MetricsCollector(const Trace& trace)
    : MetricsCollector(trace.requests.empty() ? 0 : trace.requests.back().arrival_ns) {
  records_.reserve(trace.requests.size());
  for (const TraceRequest& request : trace.requests) add_request(request);
}

MetricsCollector::MetricsCollector(int64_t last_arrival_ns)
    : sample_every_ns_(std::max<int64_t>(1, last_arrival_ns / kNumSamples)) {}

void MetricsCollector::add_request(const TraceRequest& request) {
  RequestRecord& record = records_.emplace_back();
  record.arrival_ns = request.arrival_ns;
  record.prompt_tokens = request.prompt_tokens;
  record.adapter = request.adapter;
}

void MetricsCollector::on_decision(const Decision& d) {
  std::visit([&](const auto& what) { on(d, what); }, d.what);
}

// Every wait begins and ends with a decision, so no queue is missed.
void MetricsCollector::set_waiting(uint64_t request, bool waits) {
  if (waits_.size() <= request) waits_.resize(records_.size());
  num_waiting_ += int64_t(waits) - int64_t(waits_[request]);
  waits_[request] = waits;
  max_waiting_ = std::max(max_waiting_, num_waiting_);
}

void MetricsCollector::on(const Decision& d, const decision::Arrival& /*arrival*/) {
  set_waiting(d.request, true);
}

void MetricsCollector::on(const Decision& d, const decision::Admission& admission) {
  set_waiting(d.request, false);
  RequestRecord& r = records_[d.request];
  if (r.first_scheduled_ns >= 0) return;  // admitted again after a preemption
  r.first_scheduled_ns = d.time_ns;
  r.cached_tokens = admission.num_cached_tokens;
  if (r.adapter != kBaseModel) split_wait(r);
}

// Disk, host, on its way, on the GPU: an adapter's last times of each say where it was while the
// request waited.
void MetricsCollector::split_wait(RequestRecord& r) const {
  const Moves& moves = moves_[r.adapter];
  const auto since_arrival = [&](int64_t time_ns) {
    return std::clamp(time_ns, r.arrival_ns, r.first_scheduled_ns) - r.arrival_ns;
  };
  const int64_t loaded = since_arrival(moves.loaded_ns);
  const int64_t copy_begin = since_arrival(moves.copy_begin_ns);
  r.wait_load_ns = loaded;
  r.wait_slot_ns = std::max<int64_t>(0, copy_begin - loaded);
  r.wait_copy_ns = std::max<int64_t>(0, since_arrival(moves.copied_ns) - copy_begin);
}

void MetricsCollector::watch(const Slo& slo) {
  watched_ = slo;
  // Fewer requests may be measured than there are, but then fewer late ones suffice.
  const double num_others = std::max(0.0, double(records_.size()) - 1);
  late_for_certain_ =
      int64_t(records_.size()) - int64_t(std::floor(slo.percentile / 100 * num_others));
}

void MetricsCollector::on(const Decision& d, const decision::FirstToken& /*first*/) {
  records_[d.request].first_token_ns = d.time_ns;
  take_last_token(d.request);  // preempted before it had one
}

// It had a token in every step until now; a request preempted again before its next token keeps
// the older time.
void MetricsCollector::on(const Decision& d, const decision::Preemption& /*preemption*/) {
  set_waiting(d.request, true);
  ++num_preemptions_;
  ++records_[d.request].num_preemptions;
  if (last_token_ns_.size() < records_.size()) last_token_ns_.resize(records_.size(), -1);
  if (last_token_ns_[d.request] >= 0) return;
  last_token_ns_[d.request] = last_step_end_ns_;
  ++num_irregular_;
}

// Its step may be in flight.
void MetricsCollector::on(const Decision& /*d*/, const decision::Abort& /*abort*/) {
  ++num_irregular_;
}

void MetricsCollector::on(const Decision& d, const decision::Finish& finish) {
  RequestRecord& r = records_[d.request];
  r.finish_ns = d.time_ns;
  r.output_tokens = finish.num_generated;
  r.outcome = outcome_of(finish.reason);
  set_waiting(d.request, false);
  take_last_token(d.request);
  if (finish.reason == FinishReason::abort) --num_irregular_;
  end_ns_ = std::max(end_ns_, d.time_ns);
  something_finished_ = true;
  if (late_for_certain_ > 0) count_lateness(r);
}

void MetricsCollector::count_lateness(const RequestRecord& r) {
  if (r.outcome == RequestOutcome::failed) slo_is_missed_ = true;
  if (left_without_token(r)) {
    late_ttft_ += watched_.ttft_ms > 0 && vain_wait_ms(r) > watched_.ttft_ms;
  } else if (r.outcome == RequestOutcome::completed) {
    const Latencies l = latencies_of(r);
    late_ttft_ += watched_.ttft_ms > 0 && l.has_first_token && l.ttft_ms > watched_.ttft_ms;
    late_tpot_ += watched_.tpot_ms > 0 && l.has_tpot && l.tpot_ms > watched_.tpot_ms;
  }
  slo_is_missed_ |= std::max(late_ttft_, late_tpot_) >= late_for_certain_;
}

void MetricsCollector::on(const Decision& /*d*/, const decision::Load& load) {
  ++loads_, load_bytes_ += load.bytes;
}

void MetricsCollector::on(const Decision& d, const decision::LoadDone& /*load*/) {
  moves_[index_of_[d.uid]].loaded_ns = d.time_ns;
}

void MetricsCollector::on(const Decision& d, const decision::Copy& copy) {
  ++copies_, copy_bytes_ += copy.bytes;
  moves_[index_of_[d.uid]].copy_begin_ns = d.time_ns;
}

void MetricsCollector::on(const Decision& d, const decision::CopyDone& copy) {
  const auto slot = size_t(copy.slot);
  open_slots_.resize(std::max(open_slots_.size(), slot + 1), SlotSpan{.adapter = kBaseModel});
  const AdapterIndex adapter = index_of_[d.uid];
  moves_[adapter].copied_ns = d.time_ns;
  open_slots_[slot] = {d.time_ns, 0, adapter, uint16_t(slot)};
}

void MetricsCollector::on(const Decision& d, const decision::Eviction& eviction) {
  if (eviction.slot != kNoSlot) close_slot(uint32_t(eviction.slot), d.time_ns);
}

void MetricsCollector::on(const Decision& /*d*/, const decision::Drain& /*drain*/) {
  ++num_drains_;
}

void MetricsCollector::close_slot(uint32_t slot, int64_t now_ns) {
  if (slot >= open_slots_.size() || open_slots_[slot].adapter == kBaseModel) return;
  open_slots_[slot].end_ns = now_ns;
  slot_spans_.push_back(open_slots_[slot]);
  open_slots_[slot].adapter = kBaseModel;
}

// The end of the request's last token if it was preempted since, else -1; forgets it.
int64_t MetricsCollector::take_last_token(uint64_t request) {
  if (request >= last_token_ns_.size() || last_token_ns_[request] < 0) return -1;
  --num_irregular_;
  return std::exchange(last_token_ns_[request], -1);
}

// Rows that decode had their last token at the end of the step before: every running request is in
// every step. Only a request that comes back from preemption has an older one, and the token of an
// aborted request is dropped.
void MetricsCollector::add_gaps(const Scheduler& scheduler, const StepPlan& plan, int64_t now_ns) {
  if (num_irregular_ == 0 && plan.num_discarded == 0) {
    return itl_.add(now_ns - last_step_end_ns_, plan.num_decode_rows);
  }
  int64_t num_regular = 0;
  for (const StepRow& row : plan.rows) {
    const Request& r = scheduler.request(row.request);
    if (!row.samples || r.num_generated == 0 || scheduler.is_discarded(row)) continue;
    const int64_t last = take_last_token(r.id);
    last >= 0 ? itl_.add(now_ns - last) : void(++num_regular);
  }
  if (num_regular > 0) itl_.add(now_ns - last_step_end_ns_, num_regular);
}

void MetricsCollector::on_step_end(const Scheduler& scheduler, const StepPlan& plan,
                                   int64_t start_ns, int64_t now_ns) {
  add_gaps(scheduler, plan, now_ns);
  ++num_steps_;
  busy_ns_ += now_ns - start_ns;
  sum_seqs_ += int64_t(plan.rows.size());
  max_running_ = std::max(max_running_, int64_t(plan.rows.size()));
  last_step_end_ns_ = now_ns;
}

void MetricsCollector::on_commit(const Scheduler& scheduler, int64_t now_ns) {
  if (std::exchange(something_finished_, false)) sample(scheduler, now_ns);
}

void MetricsCollector::sample(const Scheduler& scheduler, int64_t now_ns) {
  max_kv_blocks_ = std::max(max_kv_blocks_, int64_t(scheduler.blocks().most_referenced()));
  if (now_ns < next_sample_ns_) return;
  next_sample_ns_ = now_ns - now_ns % sample_every_ns_ + sample_every_ns_;
  timeline_.push_back({now_ns, int32_t(scheduler.running().size()),
                       int32_t(scheduler.waiting().size()), scheduler.residency().num_on_gpu(),
                       int64_t(scheduler.blocks().num_referenced())});
}

void MetricsCollector::absorb(const MetricsCollector& other, std::span<const size_t> indices) {
  for (size_t i = 0; i < other.records_.size(); ++i) records_[indices[i]] = other.records_[i];
  itl_.add(other.itl_);
  busy_ns_ += other.busy_ns_, sum_seqs_ += other.sum_seqs_, num_steps_ += other.num_steps_;
  end_ns_ = std::max(end_ns_, other.end_ns_);
  num_preemptions_ += other.num_preemptions_, num_drains_ += other.num_drains_;
  max_waiting_ = std::max(max_waiting_, other.max_waiting_);
  max_running_ = std::max(max_running_, other.max_running_);
  max_kv_blocks_ = std::max(max_kv_blocks_, other.max_kv_blocks_);
  loads_ += other.loads_, load_bytes_ += other.load_bytes_;
  copies_ += other.copies_, copy_bytes_ += other.copy_bytes_;
}

void MetricsCollector::fill(ConfigResult& result, const Slo& slo, uint32_t block_size,
                            bool keep_details) {
  result.num_requests = int64_t(records_.size());
  result.duration_s = double(end_ns_) * 1e-9;
  result.num_preemptions = num_preemptions_;
  result.num_drains = num_drains_;
  result.num_steps = num_steps_;
  result.max_waiting = max_waiting_;
  result.max_running = max_running_;
  result.max_kv_blocks = max_kv_blocks_;
  if (num_steps_ > 0) result.mean_batch_seqs = double(sum_seqs_) / double(num_steps_);
  if (end_ns_ > 0) result.gpu_busy_fraction = double(busy_ns_) / double(end_ns_);
  result.itl = itl_.summary_ms(slo.percentile);
  fill_latencies(result, slo, keep_details);
  fill_adapters(result);
  fill_waits(result, slo);
  fill_prefix(result, block_size);
  if (!keep_details) return;
  for (uint32_t slot = 0; slot < open_slots_.size(); ++slot) close_slot(slot, end_ns_);
  result.itl_counts = itl_.counts();
  result.slot_spans = std::move(slot_spans_);
  result.timeline = std::move(timeline_);
  result.requests = std::move(records_);
}

void MetricsCollector::fill_latencies(ConfigResult& result, const Slo& slo, bool keep_details) {
  std::vector<double> ttft, tpot, e2el, queue, vain_waits;
  int64_t good = 0;
  for (const RequestRecord& r : records_) {
    result.cancelled += r.outcome == RequestOutcome::cancelled;
    result.failed += r.outcome == RequestOutcome::failed || r.outcome == RequestOutcome::rejected;
    if (left_without_token(r)) vain_waits.push_back(vain_wait_ms(r));
    if (r.outcome != RequestOutcome::completed) continue;
    ++result.completed;
    result.total_input_tokens += r.prompt_tokens;
    result.total_output_tokens += r.output_tokens;
    const Latencies l = latencies_of(r);
    if (l.has_first_token) ttft.push_back(l.ttft_ms);
    if (l.has_tpot) tpot.push_back(l.tpot_ms);
    e2el.push_back(l.e2el_ms);
    queue.push_back(l.queue_ms);
    good += meets(slo, l);
  }
  result.ttft = summarize_ms(ttft, slo.percentile);
  result.tpot = summarize_ms(tpot, slo.percentile);
  result.e2el = summarize_ms(e2el, slo.percentile);
  result.queue = summarize_ms(queue, slo.percentile);
  result.slo_tpot_ms = result.tpot.pslo_ms;
  result.max_concurrent_requests = most_concurrent(records_);
  if (result.num_requests > 0) result.slo_attainment = double(good) / double(result.num_requests);
  if (result.duration_s > 0) {
    result.request_throughput = double(result.completed) / result.duration_s;
    result.request_goodput = double(good) / result.duration_s;
    const auto output_tokens = double(result.total_output_tokens);
    result.output_throughput = output_tokens / result.duration_s;
    result.total_token_throughput =
        (double(result.total_input_tokens) + output_tokens) / result.duration_s;
  }
  if (keep_details) result.ttft_cdf_ms = cdf(ttft), result.tpot_cdf_ms = cdf(tpot);
  ttft.insert(ttft.end(), vain_waits.begin(), vain_waits.end());
  // A short wait says nothing of the token that did not come, so it makes no percentile better.
  result.slo_ttft_ms = std::max(result.ttft.pslo_ms, quantile(ttft, slo.percentile / 100));
}

void MetricsCollector::fill_adapters(ConfigResult& result) const {
  int64_t on_gpu = 0, on_cpu = 0, on_disk = 0;
  for (const RequestRecord& r : records_) {
    on_gpu += r.tier_at_arrival == ArrivalTier::gpu;
    on_cpu += r.tier_at_arrival == ArrivalTier::cpu;
    on_disk += r.tier_at_arrival == ArrivalTier::disk;
  }
  const int64_t missed_gpu = on_cpu + on_disk;
  const int64_t all = on_gpu + missed_gpu;
  if (all > 0) result.adapter_gpu_hit_ratio = double(on_gpu) / double(all);
  if (missed_gpu > 0) result.adapter_cpu_hit_ratio = double(on_cpu) / double(missed_gpu);
  result.adapter_loads = loads_;
  result.adapter_load_bytes = load_bytes_;
  result.adapter_copies = copies_;
  result.adapter_copy_bytes = copy_bytes_;
}

void MetricsCollector::fill_waits(ConfigResult& result, const Slo& slo) const {
  constexpr int64_t kNoticeable = 1'000'000;
  double late_ns = 0;
  for (const RequestRecord& r : records_) {
    if (r.first_scheduled_ns < 0) continue;
    const int64_t all = r.first_scheduled_ns - r.arrival_ns;
    const int64_t batch = all - r.wait_load_ns - r.wait_slot_ns - r.wait_copy_ns;
    const bool late = slo.ttft_ms > 0 && latencies_of(r).ttft_ms > slo.ttft_ms;
    if (late) late_ns += double(all);
    const auto add = [&](WaitShare& wait, int64_t time_ns) {
      wait.requests += time_ns >= kNoticeable;
      if (late) wait.of_late_time += double(time_ns);
    };
    add(result.waits.load, r.wait_load_ns);
    add(result.waits.slot, r.wait_slot_ns);
    add(result.waits.copy, r.wait_copy_ns);
    add(result.waits.batch, batch);
  }
  for (WaitShare* wait :
       {&result.waits.load, &result.waits.slot, &result.waits.copy, &result.waits.batch}) {
    wait->requests /= std::max(1.0, double(records_.size()));
    wait->of_late_time /= std::max(1.0, late_ns);
  }
}

// Over the requests that were admitted; a block counts whether it is full or not.
void MetricsCollector::fill_prefix(ConfigResult& result, uint32_t block_size) const {
  int64_t tokens = 0, cached = 0, blocks = 0;
  for (const RequestRecord& r : records_) {
    if (r.first_scheduled_ns < 0) continue;
    tokens += r.prompt_tokens;
    cached += r.cached_tokens;
    blocks += (int64_t{r.prompt_tokens} + block_size - 1) / block_size;
  }
  if (tokens == 0) return;
  result.prefix_hit_ratio_tokens = double(cached) / double(tokens);
  result.prefix_hit_ratio_blocks = double(cached / block_size) / double(blocks);
}

}  // namespace loratory::sim
