#include "scheduler_sim/measured/simulate_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "reference/base/check.hpp"
#include "reference/base/units.hpp"
#include "scheduler_sim/measured/adapter_sets.hpp"
#include "scheduler_sim/measured/closed_loop.hpp"
#include "scheduler_sim/measured/metrics_polls.hpp"
#include "scheduler_sim/metrics/quantiles.hpp"
#include "scheduler_sim/simulator/simulated_engine.hpp"
#include "scheduler_sim/workload/random.hpp"
#include "scheduler_sim/workload/sharegpt.hpp"

namespace loratory::sim {
namespace {

// vLLM 0.8.5 merges what a request's stream has not taken (v1/engine/output_processor.py,
// RequestOutputCollector). After a poll the steps that piled up are handed out one after the other,
// and streams get their turn between slices of so many outputs (envs.py,
// VLLM_V1_OUTPUT_PROC_CHUNK_SIZE): only a step of one slice leaves them none.
constexpr size_t kOutputsOfASlice = 128;

// Keeps a step whenever so many more rows have gone by; when there are too many, every second one.
class SamplingModel final : public StepTimeModel {
 public:
  SamplingModel(const StepTimeModel& model, bool samples) : model_(model), samples_(samples) {}

  int64_t step_ns(const BatchShape& shape) const override {
    const int64_t ns = model_.step_ns(shape);
    tokens_ += double(shape.num_sampled);
    token_ns_ += double(shape.num_sampled) * double(ns);
    if (samples_) sample(shape, ns);
    return ns;
  }
  bool asks_waiting_seen() const override { return samples_ || model_.asks_waiting_seen(); }
  // Of the steps that tokens came from.
  double mean_step_ns() const { return tokens_ > 0 ? token_ns_ / tokens_ : 0; }
  std::vector<SampledStep> take() { return std::move(steps_); }

 private:
  static constexpr size_t kMost = 1024;

  void sample(const BatchShape& shape, int64_t ns) const {
    rows_ += shape.num_seqs;
    if (rows_ < next_) return;
    next_ = rows_ + stride_;
    steps_.push_back({shape, ns});
    if (steps_.size() < kMost) return;
    for (size_t i = 0; i < kMost / 2; ++i) steps_[i] = steps_[2 * i + 1];
    steps_.resize(kMost / 2);
    stride_ *= 2;
  }

  const StepTimeModel& model_;
  bool samples_;
  mutable double tokens_ = 0, token_ns_ = 0;
  mutable std::vector<SampledStep> steps_;
  mutable int64_t rows_ = 0, next_ = 0, stride_ = 16;
};

// The adapters of the description, with their ranks in turn.
Trace adapters_of(const MeasuredRun& run) {
  Trace trace;
  for (int64_t i = 0; i < run.num_adapters(); ++i) {
    const int64_t rank = run.ranks.empty() ? 0 : run.ranks[size_t(i) % run.ranks.size()];
    trace.adapters.push_back({fmt::format("adapter-{}", i), uint32_t(rank)});
  }
  return trace;
}

// Poisson arrivals of all adapters together, unless the client saved when it sent what; whose
// request it is goes by the rates. In a closed loop nobody asks at a rate, and all adapters are
// alike.
class Arrivals {
 public:
  Arrivals(const MeasuredRun& run, uint64_t seed)
      : gaps_(seed, Purpose::arrivals), owners_(seed, Purpose::adapters), saved_(run.requests) {
    for (const AdapterGroup& group : run.adapters) {
      for (int64_t i = 0; i < std::max<int64_t>(1, group.count); ++i) {
        const double rate = run.client.concurrency > 0 ? 1 : group.rate_rps;
        rates_.push_back((rates_.empty() ? 0 : rates_.back()) + rate);
      }
    }
    has_adapters_ = run.num_adapters() > 0;
  }

  int64_t next_ns() {
    if (!saved_.empty() && saved_[0].sent_ns >= 0) {
      const uint64_t i = index_++;
      return i < saved_.size() ? saved_[i].sent_ns : kNever;
    }
    time_s_ += gaps_.exponential(index_++) / rates_.back();
    return int64_t(time_s_ * kNsPerSecond);
  }
  void skip_gap() { ++index_; }
  AdapterIndex adapter() const {
    if (!has_adapters_) return kBaseModel;
    const double at = owners_.unit(index_) * rates_.back();
    return AdapterIndex(std::ranges::upper_bound(rates_, at) - rates_.begin());
  }

 private:
  RandomStream gaps_, owners_;
  std::span<const RecordedRequest> saved_;
  std::vector<double> rates_;  // cumulated
  bool has_adapters_ = false;
  double time_s_ = 0;
  uint64_t index_ = 0;
};

class Lengths {
 public:
  Lengths(const MeasuredRun& run, const ServerTerms& server, uint64_t seed)
      : lengths_(seed, Purpose::prompt_tokens),
        stops_(seed, Purpose::output_tokens),
        tokens_to_stop_(server.mean_tokens_to_stop),
        saved_(run.requests),
        constant_{uint32_t(run.mean_prompt_tokens), uint32_t(run.mean_output_tokens)} {
    if (run.lengths == LengthKind::sharegpt) {
      sharegpt_.emplace(run.mean_prompt_tokens, run.mean_output_tokens);
      if (sharegpt_->have_means()) return;
      throw InputError(run.place,
                       fmt::format("ShareGPT's conversations have no mean of {} tokens of prompt "
                                   "and {} of output",
                                   run.mean_prompt_tokens, run.mean_output_tokens),
                       "give other means, or constant lengths");
    }
  }

  RequestLength of(uint64_t request) const {
    if (!saved_.empty()) {
      const RecordedRequest& saved = saved_[request % saved_.size()];
      return {saved.prompt_tokens, saved.output_tokens};
    }
    if (!sharegpt_) return constant_;
    RequestLength length = sharegpt_->draw(lengths_, request);
    if (tokens_to_stop_ > 0) {
      const double stop = tokens_to_stop_ * stops_.exponential(request);
      length.output_tokens = uint32_t(std::max(1.0, std::min(double(length.output_tokens), stop)));
    }
    return length;
  }

 private:
  RandomStream lengths_, stops_;
  double tokens_to_stop_;
  std::span<const RecordedRequest> saved_;
  RequestLength constant_;
  std::optional<ShareGptLengths> sharegpt_;
};

double median(std::vector<double>& values) { return values.empty() ? 0 : quantile(values, 0.5); }

// Those who hear the engine's decisions.
struct Listeners final : DecisionSink {
  AdapterSets sets;
  ClosedLoop loop;
  int64_t last_end_ns = 0;

  explicit Listeners(ClosedLoop closed) : loop(std::move(closed)) {}
  void on_decision(const Decision& decision) override {
    sets.on_decision(decision);
    loop.on_decision(decision);
    if (decision.is<decision::Finish>()) last_end_ns = decision.time_ns;
  }
};

ClosedLoop closed_loop_of(const MeasuredRun& run, const ServerTerms& server) {
  const MeasuredClient& client = run.client;
  LORATORY_ASSERT(client.num_requests > 0 || client.duration_s > 0, "a run ends");
  constexpr double kLeastMs = 0.1;  // even where nobody said what lies between client and engine
  return {client.concurrency, client.num_requests > 0 ? client.num_requests : kNever,
          int64_t(std::max(kLeastMs, server.frontend_ms) * kNsPerMs)};
}

struct Run {
  const MeasuredRun& description;
  const ServerTerms& server;
  SimulatedEngine& engine;
  Listeners& listeners;
  MetricsPolls polls;
  int64_t end_ns;
  std::vector<int64_t> sent_ns{};  // by request
  int64_t num_dropped = 0;
  double sets_at_polls = 0, names_at_polls = 0;

  void advance_polls(int64_t until_ns) {
    const AdapterSets& sets = listeners.sets;
    const size_t before = polls.num_polls();
    const double ns = server.metrics_ms * kNsPerMs +
                      server.metrics_us_per_adapter_set * kNsPerUs * double(sets.num_seen()) +
                      server.metrics_us_per_name * kNsPerUs * double(sets.num_names());
    const bool merged = engine.scheduler().running().size() <= kOutputsOfASlice;
    polls.advance_to(until_ns, int64_t(ns), merged);
    const auto new_polls = double(polls.num_polls() - before);
    sets_at_polls += new_polls * double(sets.num_seen());
    names_at_polls += new_polls * double(sets.num_names());
  }

  void send(int64_t time_ns, const Arrivals& arrivals, const Lengths& lengths) {
    advance_polls(time_ns);
    const int64_t arrival_ns = polls.seen_ns(time_ns);
    if (arrival_ns >= end_ns) return;
    engine.advance_to({arrival_ns, Moment::Phase::arrivals});
    const int64_t limit = description.client.max_in_flight;
    if (limit > 0 && engine.scheduler().num_live() >= limit) {
      ++num_dropped;
      return;
    }
    const uint64_t id = sent_ns.size();
    const RequestLength length = lengths.of(id);
    TraceRequest request;
    request.arrival_ns = arrival_ns;
    request.prompt_tokens = length.prompt_tokens;
    request.output_tokens = length.output_tokens;
    request.adapter = arrivals.adapter();
    sent_ns.push_back(time_ns);
    engine.metrics().add_request(request);
    const int64_t num_live = engine.scheduler().num_live();
    engine.arrive(id, request);
    const bool is_rejected = engine.scheduler().num_live() == num_live;
    if (is_rejected) listeners.loop.on_end(arrival_ns);
  }

  // At the adapters' rates, or each when another one has ended.
  void send_all(Arrivals& arrivals, const Lengths& lengths) {
    if (description.client.concurrency > 0) {
      while (const std::optional<int64_t> time_ns = listeners.loop.next_ns(engine, end_ns)) {
        arrivals.skip_gap();
        send(*time_ns, arrivals, lengths);
      }
      return;
    }
    const int64_t most = description.client.num_requests;
    for (int64_t time_ns = arrivals.next_ns(); time_ns < end_ns; time_ns = arrivals.next_ns()) {
      if (most > 0 && std::ssize(sent_ns) + num_dropped == most) return;
      send(time_ns, arrivals, lengths);
    }
  }

  // Until the run's end, or until all requests are done.
  void finish() {
    engine.advance_to({end_ns, Moment::Phase::arrivals});
    if (end_ns == kNever) end_ns = listeners.last_end_ns;
    advance_polls(end_ns);
  }
};

// What the client has seen of the requests that were done by the end.
RunMeasures measure(const Run& run, const std::vector<RequestRecord>& records) {
  std::vector<double> ttft, tpot;
  double prompt = 0, output = 0, gaps = 0, gap_ms = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    const RequestRecord& r = records[i];
    if (r.outcome != RequestOutcome::completed) continue;
    prompt += r.prompt_tokens;
    output += r.output_tokens;
    const int64_t first = run.polls.seen_ns(r.first_token_ns);
    ttft.push_back(double(first - run.sent_ns[i]) / kNsPerMs + run.server.frontend_ms);
    if (r.output_tokens < 2) continue;
    const double ms = double(run.polls.seen_ns(r.finish_ns) - first) / kNsPerMs;
    const double num_gaps = double(r.output_tokens) - 1;
    tpot.push_back(ms / num_gaps);
    gap_ms += ms;
    gaps += run.polls.num_gaps_seen(r.first_token_ns, r.finish_ns, num_gaps);
  }
  const auto mean = [](const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return values.empty() ? RunMeasures::kUnknown : sum / double(values.size());
  };
  const double seconds = double(run.end_ns) / kNsPerSecond;
  RunMeasures m;
  m.completed = double(ttft.size());
  m.input_tps = prompt / seconds;
  m.output_tps = output / seconds;
  m.mean_ttft_ms = mean(ttft);
  m.median_ttft_ms = median(ttft);
  m.mean_tpot_ms = mean(tpot);
  m.median_tpot_ms = median(tpot);
  m.mean_itl_ms = gap_ms / gaps;
  return m;
}

double mean_gap_ns(const std::vector<RequestRecord>& records) {
  double ns = 0, gaps = 0;
  for (const RequestRecord& r : records) {
    if (r.outcome != RequestOutcome::completed || r.output_tokens < 2) continue;
    ns += double(r.finish_ns - r.first_token_ns);
    gaps += double(r.output_tokens) - 1;
  }
  return gaps > 0 ? ns / gaps : 0;
}

}  // namespace

RunMeasures measures_of_start(const MemoryPlan& memory, int64_t block_size) {
  RunMeasures start;
  start.kv_tokens = memory.fits() ? double(memory.split.kv_blocks * block_size) : 0;
  start.weights_gib = double(memory.split.weights_bytes + memory.split.slot_bytes) / double(kGiB);
  return start;
}

SimulatedRun simulate_run(const MeasuredRun& run, const EngineSpec& engine,
                          const ServerTerms& server, uint64_t seed, bool sample_steps) {
  SimulatedRun out;
  const EnginePoint point{int32_t(run.max_loras), int32_t(run.max_cpu_loras)};
  const MemoryPlan memory = memory_of(engine, point);
  out.measures = measures_of_start(memory, engine.scheduler.block_size);
  if (!memory.fits()) return out;

  const Trace trace = adapters_of(run);
  SimulationConfig config = simulation_config(trace, engine, point, memory.split.kv_blocks);
  config.hash_log = false;
  const auto step_time = engine.make_step_time(point);
  SamplingModel model(*step_time, sample_steps);
  const double duration_s = run.client.duration_s;
  const int64_t end_ns = duration_s > 0 ? int64_t(duration_s * kNsPerSecond) : kNever;
  Listeners listeners(closed_loop_of(run, server));
  SimulatedEngine simulated(trace, config, model, MetricsCollector(end_ns), &listeners);
  Run going{run,
            server,
            simulated,
            listeners,
            MetricsPolls(int64_t(run.client.poll_interval_s * kNsPerSecond)),
            end_ns};
  Arrivals arrivals(run, seed);
  const Lengths lengths(run, server, seed);
  going.send_all(arrivals, lengths);
  going.finish();

  const RunMeasures start = out.measures;
  out.measures = measure(going, simulated.metrics().requests());
  out.measures.kv_tokens = start.kv_tokens;
  out.measures.weights_gib = start.weights_gib;
  out.num_sent = int64_t(going.sent_ns.size());
  out.num_dropped = going.num_dropped;
  out.num_preemptions = simulated.metrics().num_preemptions();
  out.mean_gap_ns = mean_gap_ns(simulated.metrics().requests());
  out.copy_gap_ns = std::max(0.0, out.mean_gap_ns - model.mean_step_ns());
  const auto num_polls = double(std::max<size_t>(1, going.polls.num_polls()));
  out.mean_adapter_sets = going.sets_at_polls / num_polls;
  out.mean_adapter_names = going.names_at_polls / num_polls;
  out.steps = model.take();
  return out;
}

}  // namespace loratory::sim
