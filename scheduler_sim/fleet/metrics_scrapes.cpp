#include "scheduler_sim/fleet/metrics_scrapes.hpp"

#include <algorithm>

namespace loratory::sim {

using AdapterUse = FleetView::AdapterUse;

MetricsScrapes::MetricsScrapes(int32_t num_replicas, size_t num_adapters, int64_t interval_ns)
    : interval_ns_(interval_ns),
      metrics_(size_t(num_replicas)),
      num_decisions_(size_t(num_replicas), 0),
      in_use_(size_t(num_replicas)),
      num_adapters_(num_adapters) {}

// Scrape k * n + r is that of replica r in interval k.
int64_t MetricsScrapes::time_of(int64_t scrape) const {
  const int64_t n = std::ssize(metrics_);
  return scrape / n * interval_ns_ + scrape % n * interval_ns_ / n;
}

int64_t MetricsScrapes::num_due(int64_t now_ns) const {
  const int64_t n = std::ssize(metrics_);
  int64_t due = now_ns / interval_ns_ * n + now_ns % interval_ns_ * n / interval_ns_;
  while (time_of(due) <= now_ns) ++due;
  return due;
}

void MetricsScrapes::take_due(int64_t now_ns, std::deque<Replica>& replicas) {
  const int64_t n = std::ssize(metrics_);
  const int64_t due = interval_ns_ > 0 ? num_due(now_ns) : num_taken_ + n;
  for (int64_t i = std::max(num_taken_, due - n); i < due; ++i) {
    Replica& replica = replicas[size_t(i % n)];
    const int64_t time_ns = interval_ns_ > 0 ? time_of(i) : now_ns;
    replica.advance_lazily_to(time_ns);
    take(time_ns, int32_t(i % n), replica.engine());
  }
  num_taken_ = due;
}

AdapterUse MetricsScrapes::use_of(AdapterIndex adapter, int32_t replica) const {
  if (uses_.empty()) return AdapterUse::none;
  return AdapterUse(uses_[size_t{adapter} * metrics_.size() + size_t(replica)]);
}

void MetricsScrapes::take(int64_t time_ns, int32_t replica, const SimulatedEngine& engine) {
  const Scheduler& scheduler = engine.scheduler();
  EndpointMetrics& m = metrics_[size_t(replica)];
  const double kv_usage =
      double(engine.num_blocks_at(time_ns)) / double(scheduler.config().num_blocks - 1);
  num_changes_ += kv_usage != m.kv_usage;
  m.kv_usage = kv_usage;
  if (num_decisions_[size_t(replica)] == engine.log().size()) return;
  num_decisions_[size_t(replica)] = engine.log().size();
  ++num_changes_;
  m.num_waiting = int64_t(scheduler.waiting().size());
  take_adapters(replica, engine);
}

void MetricsScrapes::take_adapters(int32_t replica, const SimulatedEngine& engine) {
  const Scheduler& scheduler = engine.scheduler();
  EndpointMetrics& m = metrics_[size_t(replica)];
  for (const AdapterIndex adapter : in_use_[size_t(replica)]) {
    uses_[size_t{adapter} * metrics_.size() + size_t(replica)] = 0;
  }
  in_use_[size_t(replica)].clear();
  m.num_running_adapters = m.num_waiting_adapters = 0;
  for (const RequestRef ref : scheduler.running()) {
    const AdapterIndex adapter = engine.adapter_of(scheduler.request(ref).adapter);
    m.num_running_adapters += add_use(adapter, replica, AdapterUse::running);
  }
  for (const bool reserving : {false, true}) {
    for (const auto& [key, ref] : scheduler.waiting().heads(reserving)) {
      const AdapterIndex adapter = engine.adapter_of(scheduler.request(ref).adapter);
      m.num_waiting_adapters += add_use(adapter, replica, AdapterUse::waiting);
    }
  }
}

// 1 if this is new.
int32_t MetricsScrapes::add_use(AdapterIndex adapter, int32_t replica, AdapterUse use) {
  if (adapter == kBaseModel) return 0;
  if (uses_.empty()) uses_.resize(metrics_.size() * num_adapters_, 0);
  uint8_t& uses = uses_[size_t{adapter} * metrics_.size() + size_t(replica)];
  if ((uses & uint8_t(use)) != 0) return 0;
  if (uses == 0) in_use_[size_t(replica)].push_back(adapter);
  uses |= uint8_t(use);
  return 1;
}

}  // namespace loratory::sim
