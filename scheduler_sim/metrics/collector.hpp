#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler_sim/engine/step_observer.hpp"
#include "scheduler_sim/metrics/latency_histogram.hpp"
#include "scheduler_sim/metrics/results.hpp"
#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

/// Where an adapter is; one whose unload has completed is nowhere but on the disk.
ArrivalTier arrival_tier(const Residency& residency, Uid uid);

/// Turns decisions and steps into request records and sums. Request ids are trace indices.
///
/// Definitions (docs/results.md): TTFT = first token - arrival; TPOT = (last - first token) /
/// (tokens - 1), for requests with two tokens or more; ITL = every gap between two tokens of a
/// request; E2EL = last token - arrival; queue = first admission - arrival.
class MetricsCollector final : public DecisionSink, public StepObserver {
 public:
  /// Of all requests of the trace.
  explicit MetricsCollector(const Trace& trace);
  /// Of requests that are added one by one, the last of them at `last_arrival_ns`.
  explicit MetricsCollector(int64_t last_arrival_ns);
  /// Its id is the number of requests before it.
  void add_request(const TraceRequest& request);

  /// Before any decision about the adapter.
  void on_registered(AdapterIndex adapter, Uid uid) {
    index_of_.resize(std::max(index_of_.size(), size_t{uid} + 1), kBaseModel);
    index_of_[uid] = adapter;
    moves_.resize(std::max(moves_.size(), size_t{adapter} + 1));
  }
  void on_decision(const Decision& decision) override;
  /// Where the adapter was when the request arrived (before its submission starts a prefetch).
  void on_arrival(size_t request, ArrivalTier tier) { records_[request].tier_at_arrival = tier; }
  void on_rejected(size_t request) {
    records_[request].outcome = RequestOutcome::rejected;
    slo_is_missed_ = true;
  }
  /// From now on slo_is_missed() watches these limits.
  void watch(const Slo& slo);
  /// Whatever happens until the end, the SLO will be missed: a request has failed, or so many were
  /// late that the percentile is. False says nothing.
  bool slo_is_missed() const { return slo_is_missed_; }
  /// A step that started at `start_ns` and ends now; called before its commit.
  void on_step_end(const Scheduler& scheduler, const StepPlan& plan, int64_t start_ns,
                   int64_t now_ns) override;
  /// `num_seqs` rows decoded once more in each of the steps of a stretch.
  void on_regular_step(int64_t num_seqs, int64_t step_ns) {
    itl_.add(step_ns, num_seqs);
    ++num_steps_;
    busy_ns_ += step_ns;
    sum_seqs_ += num_seqs;
  }
  void on_regular_steps_end(int64_t now_ns) { last_step_end_ns_ = now_ns; }
  /// Samples the timeline after an arrival, and after a commit that finished a request: moments
  /// that do not depend on how regular steps are run.
  void sample(const Scheduler& scheduler, int64_t now_ns);
  void on_commit(const Scheduler& scheduler, int64_t now_ns) override;

  /// Adds what another engine's collector has seen: its request i is request `indices[i]` here.
  /// The timeline and the slots are of one engine and stay with it.
  void absorb(const MetricsCollector& other, std::span<const size_t> indices);
  /// Samples of the timeline are at least so far apart.
  int64_t sample_every_ns() const { return sample_every_ns_; }

  const std::vector<RequestRecord>& requests() const { return records_; }
  int64_t num_preemptions() const { return num_preemptions_; }
  /// Fills the metrics of `result` from what was collected. `keep_details` also fills the CDFs,
  /// the timeline, the slot spans and the request records.
  void fill(ConfigResult& result, const Slo& slo, uint32_t block_size, bool keep_details);

 private:
  void on(const Decision& d, const decision::Arrival& arrival);
  void on(const Decision& d, const decision::Admission& admission);
  void on(const Decision& d, const decision::FirstToken& first);
  void on(const Decision& d, const decision::Preemption& preemption);
  void on(const Decision& d, const decision::Abort& abort);
  void on(const Decision& d, const decision::Finish& finish);
  void on(const Decision& d, const decision::Load& load);
  void on(const Decision& d, const decision::LoadDone& load);
  void on(const Decision& d, const decision::Copy& copy);
  void on(const Decision& d, const decision::CopyDone& copy);
  void on(const Decision& d, const decision::Eviction& eviction);
  void on(const Decision& d, const decision::Drain& drain);
  template <typename Kind>
  void on(const Decision& /*d*/, const Kind& /*no figure needs it*/) {}

  void set_waiting(uint64_t request, bool waits);
  int64_t take_last_token(uint64_t request);
  void split_wait(RequestRecord& r) const;
  void count_lateness(const RequestRecord& r);
  void add_gaps(const Scheduler& scheduler, const StepPlan& plan, int64_t now_ns);
  void close_slot(uint32_t slot, int64_t now_ns);
  void fill_latencies(ConfigResult& result, const Slo& slo, bool keep_details);
  void fill_adapters(ConfigResult& result) const;
  void fill_waits(ConfigResult& result, const Slo& slo) const;
  void fill_prefix(ConfigResult& result, uint32_t block_size) const;

  std::vector<AdapterIndex> index_of_;  // by uid, which count up
  std::vector<RequestRecord> records_;
  std::vector<int64_t> last_token_ns_;  // of preempted requests, by request; empty until needed
  int64_t num_irregular_ = 0;  // live requests preempted since their last token, or aborted
  LatencyHistogram itl_;
  int64_t last_step_end_ns_ = 0, busy_ns_ = 0, sum_seqs_ = 0, num_steps_ = 0;
  int64_t end_ns_ = 0;
  bool something_finished_ = false;
  std::vector<bool> waits_;  // by request; shorter until the last one waits
  int64_t num_waiting_ = 0, max_waiting_ = 0;
  int64_t num_preemptions_ = 0, num_drains_ = 0;
  int64_t loads_ = 0, load_bytes_ = 0, copies_ = 0, copy_bytes_ = 0;

  // Of each adapter's last way to the GPU, by AdapterIndex.
  struct Moves {
    int64_t loaded_ns = 0, copy_begin_ns = 0, copied_ns = 0;
  };
  std::vector<Moves> moves_;
  Slo watched_;
  int64_t late_ttft_ = 0, late_tpot_ = 0, late_for_certain_ = 0;  // of watched_
  bool slo_is_missed_ = false;
  int64_t max_running_ = 0, max_kv_blocks_ = 0;

  std::vector<SlotSpan> open_slots_;  // by slot; adapter == kBaseModel: empty
  std::vector<SlotSpan> slot_spans_;
  std::vector<TimelineSample> timeline_;
  int64_t sample_every_ns_ = 1, next_sample_ns_ = 0;
};

}  // namespace loratory::sim
