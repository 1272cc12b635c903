#include "scheduler_sim/fleet/fleet.hpp"

#include "reference/base/check.hpp"

namespace loratory::sim {

Fleet::Fleet(const Trace& trace, const SimulationConfig& config, const StepTimeModel& step_time,
             const FleetOptions& options, const std::vector<AdapterIndex>& pins)
    : trace_(trace),
      router_options_{.kind = options.router,
                      .seed = options.seed,
                      .num_replicas = options.num_replicas,
                      .max_loras = config.scheduler.residency.max_loras,
                      .block_size = config.scheduler.block_size,
                      .kv_blocks = config.scheduler.num_blocks - 1},
      options_(options),
      scrapes_(options.num_replicas, trace.adapters.size(), options.scrape_interval_ns),
      outstanding_(size_t(options.num_replicas), 0),
      counted_until_ns_(size_t(options.num_replicas), -1) {
  LORATORY_ASSERT(options.num_replicas >= 1 && options.scrape_interval_ns >= 0,
                  "a fleet has replicas, and time does not run backwards");
  for (int32_t i = 0; i < options.num_replicas; ++i) {
    replicas_.emplace_back(trace, config, step_time, pins);
  }
}

void Fleet::run() { run(*make_router(trace_, router_options_)); }

void Fleet::run(Router& router) {
  router.looks_at_replicas() ? run_together(router) : run_apart(router);
}

// One replica after the other: its memory stays in the processor's cache.
void Fleet::run_apart(Router& router) {
  std::vector<std::vector<size_t>> requests(replicas_.size());
  for (size_t i = 0; i < trace_.requests.size(); ++i) {
    requests[size_t(router.route(i, *this))].push_back(i);
  }
  for (size_t r = 0; r < replicas_.size(); ++r) {
    for (const size_t request : requests[r]) {
      replicas_[r].advance_to(trace_.requests[request].arrival_ns);
      replicas_[r].arrive(request);
      count_arrival();
    }
    replicas_[r].finish();
  }
}

void Fleet::run_together(Router& router) {
  for (size_t i = 0; i < trace_.requests.size(); ++i) {
    now_ns_ = trace_.requests[i].arrival_ns;
    send(i, router.route(i, *this));
    count_arrival();
  }
  for (Replica& replica : replicas_) replica.finish();
}

void Fleet::send(size_t request, int32_t index) {
  Replica& replica = replicas_[size_t(index)];
  replica.advance_lazily_to(now_ns_);
  replica.arrive(request);
  counted_until_ns_[size_t(index)] = -1;
}

void Fleet::count_arrival() {
  constexpr int64_t kArrivalsPerCall = 4096;
  if (++num_arrivals_ % kArrivalsPerCall == 0 && on_arrivals_) on_arrivals_(num_arrivals_);
}

int64_t Fleet::num_outstanding(int32_t index) {
  int64_t& until_ns = counted_until_ns_[size_t(index)];
  if (now_ns_ > until_ns) {
    Replica& replica = replicas_[size_t(index)];
    replica.advance_lazily_to(now_ns_);
    until_ns = replica.quiet_until_ns();
    outstanding_[size_t(index)] = replica.engine().scheduler().num_live();
  }
  return outstanding_[size_t(index)];
}

const std::vector<int64_t>& Fleet::all_outstanding() {
  for (size_t i = 0; i < outstanding_.size(); ++i) {
    if (now_ns_ > counted_until_ns_[i]) num_outstanding(int32_t(i));
  }
  return outstanding_;
}

const std::vector<EndpointMetrics>& Fleet::scraped() {
  scrapes_.take_due(now_ns_, replicas_);
  return scrapes_.metrics();
}

}  // namespace loratory::sim
