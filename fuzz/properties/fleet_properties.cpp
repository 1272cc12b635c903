// A fleet is its replicas: with any assignment each of them decides what a Simulator decides that
// replays the same requests alone, and a router sees of them what their event logs say.
#include <algorithm>
#include <map>
#include <set>

#include "fuzz/support/seeded_case.hpp"
#include "fuzz/support/simulator_case.hpp"
#include "scheduler_sim/fleet/fleet.hpp"
#include "scheduler_sim/workload/random.hpp"

namespace loratory::sim {
namespace {

constexpr RouterKind kAllRouters[] = {RouterKind::round_robin,   RouterKind::least_loaded,
                                      RouterKind::power_of_two,  RouterKind::prefix_affinity,
                                      RouterKind::lora_affinity, RouterKind::llm_d};

// Where each request goes is known before; replicas run together or apart.
class Fixed : public Router {
 public:
  Fixed(std::vector<int32_t> assignment, bool together)
      : assignment_(std::move(assignment)), together_(together) {}
  int32_t route(size_t request, FleetView& fleet) override {
    // A look at the others must not change what they decide.
    if (together_ && request % 3 == 0) fleet.scraped();
    if (together_ && request % 3 == 1)
      fleet.num_outstanding(int32_t(request) % fleet.num_replicas());
    return assignment_[request];
  }
  bool looks_at_replicas() const override { return together_; }

 private:
  std::vector<int32_t> assignment_;
  bool together_;
};

std::vector<int32_t> random_assignment(Draw& draw, const Trace& trace, int32_t num_replicas) {
  std::vector<int32_t> assignment;
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    assignment.push_back(int32_t(draw(num_replicas)));
  }
  return assignment;
}

std::vector<AdapterIndex> random_pins(Draw& draw, const World& world) {
  const bool has_pin = world.config.scheduler.residency.max_loras > 1 && draw.one_in(2);
  return has_pin ? std::vector<AdapterIndex>{AdapterIndex(draw(6))} : std::vector<AdapterIndex>{};
}

FleetOptions random_options(Draw& draw) {
  FleetOptions options;
  options.num_replicas = int32_t(draw.between(1, 5));
  options.router = kAllRouters[draw(std::ssize(kAllRouters))];
  options.scrape_interval_ns = draw.one_of<int64_t>({0, 1, 7, 500, 3000, 100'000});
  options.seed = uint64_t(draw(1000));
  return options;
}

std::string text_of(const std::vector<Decision>& decisions) {
  std::string text;
  for (const Decision& d : decisions) text += EventLog::line_of(d) + "\n";
  return text;
}

Trace part_of(const Trace& trace, const std::vector<size_t>& requests) {
  Trace part = trace;
  part.requests.clear();
  for (const size_t request : requests) part.requests.push_back(trace.requests[request]);
  return part;
}

int64_t most_requests(const Fleet& fleet) {
  int64_t most = 0;
  for (const Replica& replica : fleet.replicas()) {
    most = std::max(most, std::ssize(replica.requests()));
  }
  return most;
}

// N engines with a fixed assignment and N separate replays: the same event logs, byte for byte.
RC_GTEST_PROP(Fleet, IsSoManySeparateReplays, ()) {
  const SeededCase c = any_seeded_case(80);
  Draw draw(c.seed);
  World world = random_world(draw, c.num_ops);
  world.config.fast = !draw.one_in(3);
  const LinearTime times(draw, world.quantum_ns);
  const FleetOptions options = random_options(draw);
  const auto pins = random_pins(draw, world);
  const auto assignment = random_assignment(draw, world.trace, options.num_replicas);
  Fixed router(assignment, /*together=*/!draw.one_in(3));
  Fleet fleet(world.trace, world.config, times, options, pins);
  fleet.run(router);
  RC_CLASSIFY(options.num_replicas > 1, "several replicas");
  RC_CLASSIFY(most_requests(fleet) > 3, "a replica with more than three requests");
  RC_CLASSIFY(router.looks_at_replicas(), "together");
  RC_CLASSIFY(world.config.fast, "fast");
  RC_CLASSIFY(!pins.empty(), "pinned");
  for (size_t r = 0; r < fleet.replicas().size(); ++r) {
    Replica& replica = fleet.replicas()[r];
    for (const size_t request : replica.requests()) RC_ASSERT(assignment[request] == int32_t(r));
    const Trace part = part_of(world.trace, replica.requests());
    Simulator alone(part, world.config, times);
    for (const AdapterIndex pin : pins) alone.schedule({0, ScheduledOp::Kind::pin, pin});
    alone.run();
    RC_ASSERT(text_of(replica.engine().log().decisions()) == text_of(alone.log().decisions()));
    RC_ASSERT(replica.engine().log().hash() == alone.log().hash());
    ConfigResult a, b;
    replica.metrics().fill(a, {}, world.config.scheduler.block_size, /*keep_details=*/false);
    alone.metrics().fill(b, {}, world.config.scheduler.block_size, /*keep_details=*/false);
    RC_ASSERT(a.num_steps == b.num_steps);
    RC_ASSERT(a.gpu_busy_fraction == b.gpu_busy_fraction);
    RC_ASSERT(a.itl.mean_ms == b.itl.mean_ms);
    RC_ASSERT(a.ttft.mean_ms == b.ttft.mean_ms);
    RC_ASSERT(a.adapter_gpu_hit_ratio == b.adapter_gpu_hit_ratio);
  }
}

// Steps that stay ahead look to every router as if they had been run: KV usage, waiting requests,
// adapters, outstanding requests.
RC_GTEST_PROP(Fleet, JumpingEqualsSteppingForEveryRouter, ()) {
  const SeededCase c = any_seeded_case(60);
  Draw draw(c.seed);
  World world = random_world(draw, c.num_ops);
  const LinearTime times(draw, world.quantum_ns);
  const FleetOptions options = random_options(draw);
  RC_CLASSIFY(true, name_of(options.router));
  std::vector<std::string> logs[2];
  std::vector<std::vector<size_t>> requests[2];
  for (const int fast : {0, 1}) {
    world.config.fast = fast == 1;
    Fleet fleet(world.trace, world.config, times, options);
    fleet.run();
    for (const Replica& replica : fleet.replicas()) {
      logs[fast].push_back(text_of(replica.engine().log().decisions()));
      requests[fast].push_back(replica.requests());
    }
  }
  RC_ASSERT(requests[0] == requests[1]);
  RC_ASSERT(logs[0] == logs[1]);
}

// --- what a router sees, against the event logs ---------------------------------------------

// A replica at the arrivals of a time, from the decisions before it. An arrival of the time itself
// counts if it was sent before.
struct Seen {
  std::map<uint64_t, AdapterIndex> waiting, running;
};

Seen seen_at(const Replica& replica, const Trace& trace, int64_t time_ns) {
  Seen seen;
  for (const Decision& d : replica.engine().log().decisions()) {
    if (d.time_ns >= time_ns) break;
    if (d.request == kNoRequestId) continue;
    const AdapterIndex adapter = trace.requests[replica.requests()[d.request]].adapter;
    if (d.is<decision::Arrival>() || d.is<decision::Preemption>()) {
      seen.running.erase(d.request), seen.waiting[d.request] = adapter;
    }
    if (d.is<decision::Admission>()) {
      seen.waiting.erase(d.request), seen.running[d.request] = adapter;
    }
    if (d.is<decision::Finish>()) seen.waiting.erase(d.request), seen.running.erase(d.request);
  }
  return seen;
}

std::set<AdapterIndex> adapters_of(const std::map<uint64_t, AdapterIndex>& requests) {
  std::set<AdapterIndex> adapters;
  for (const auto& [request, adapter] : requests) adapters.insert(adapter);
  adapters.erase(kBaseModel);
  return adapters;
}

struct Look {
  size_t request;
  std::vector<EndpointMetrics> metrics;
  std::vector<std::vector<FleetView::AdapterUse>> uses;  // by adapter, replica
  std::vector<int64_t> outstanding;
  int32_t choice;
};

// Notes all that it sees, and chooses at random.
class Noting : public Router {
 public:
  Noting(const Trace& trace, std::vector<int32_t> choices)
      : trace_(trace), choices_(std::move(choices)) {}
  int32_t route(size_t request, FleetView& fleet) override {
    Look look{request, fleet.scraped(), {}, {}, choices_[request]};
    for (AdapterIndex a = 0; a < trace_.adapters.size(); ++a) {
      look.uses.emplace_back();
      for (int32_t r = 0; r < fleet.num_replicas(); ++r) {
        look.uses.back().push_back(fleet.scraped_use(a, r));
      }
    }
    for (int32_t r = 0; r < fleet.num_replicas(); ++r) {
      look.outstanding.push_back(fleet.num_outstanding(r));
    }
    looks.push_back(std::move(look));
    return choices_[request];
  }
  bool looks_at_replicas() const override { return true; }
  std::vector<Look> looks;

 private:
  const Trace& trace_;
  std::vector<int32_t> choices_;
};

// When replica r was scraped last, by `now_ns`; -1 = not yet.
int64_t last_scrape_ns(int64_t now_ns, int64_t interval_ns, int64_t r, int64_t num_replicas) {
  const int64_t phase_ns = r * interval_ns / num_replicas;
  return now_ns < phase_ns ? -1 : (now_ns - phase_ns) / interval_ns * interval_ns + phase_ns;
}

// Without cancellations: a request that is aborted in a step ends in the log before its blocks do.
RC_GTEST_PROP(Fleet, ScrapesShowWhatTheLogsSay, ()) {
  const SeededCase c = any_seeded_case(50);
  Draw draw(c.seed);
  World world = random_world(draw, c.num_ops);
  for (TraceRequest& r : world.trace.requests) r.cancel_ns = kNever;
  const LinearTime times(draw, world.quantum_ns);
  FleetOptions options = random_options(draw);
  options.scrape_interval_ns = draw.one_of<int64_t>({1, 7, 500, 3000, 100'000});
  Noting router(world.trace, random_assignment(draw, world.trace, options.num_replicas));
  Fleet fleet(world.trace, world.config, times, options);
  fleet.run(router);
  int64_t num_busy = 0;
  for (const Look& look : router.looks) {
    const int64_t now_ns = world.trace.requests[look.request].arrival_ns;
    for (size_t r = 0; r < fleet.replicas().size(); ++r) {
      const int64_t time_ns =
          last_scrape_ns(now_ns, options.scrape_interval_ns, int64_t(r), options.num_replicas);
      const Seen seen = seen_at(fleet.replicas()[r], world.trace, time_ns);
      const auto running = adapters_of(seen.running), waiting = adapters_of(seen.waiting);
      RC_ASSERT(look.metrics[r].num_waiting == std::ssize(seen.waiting));
      RC_ASSERT(look.metrics[r].num_running_adapters == std::ssize(running));
      RC_ASSERT(look.metrics[r].num_waiting_adapters == std::ssize(waiting));
      RC_ASSERT((look.metrics[r].kv_usage > 0) == !seen.running.empty());
      for (AdapterIndex a = 0; a < world.trace.adapters.size(); ++a) {
        const int use = int(running.contains(a)) + 2 * int(waiting.contains(a));
        RC_ASSERT(int(look.uses[a][r]) == use);
      }
      num_busy += !seen.running.empty();
    }
  }
  RC_CLASSIFY(num_busy > 0, "busy replicas");
}

// Outstanding: sent before and not ended before the arrivals of now. A refused request never was.
std::vector<int64_t> outstanding_at(const Fleet& fleet, const Trace& trace, size_t request) {
  const int64_t now_ns = trace.requests[request].arrival_ns;
  std::vector<int64_t> counts;
  for (const Replica& replica : fleet.replicas()) {
    int64_t count = 0;
    for (const Decision& d : replica.engine().log().decisions()) {
      if (d.request == kNoRequestId) continue;
      const bool was_sent = replica.requests()[d.request] < request;
      if (was_sent && d.is<decision::Arrival>()) ++count;
      if (was_sent && d.is<decision::Finish>() && d.time_ns < now_ns) --count;
    }
    counts.push_back(count);
  }
  return counts;
}

RC_GTEST_PROP(Fleet, LoadIsCountedAtTheRouter, ()) {
  const SeededCase c = any_seeded_case(40);
  Draw draw(c.seed);
  const World world = random_world(draw, c.num_ops);
  const LinearTime times(draw, world.quantum_ns);
  FleetOptions options = random_options(draw);
  options.router = draw.one_in(2) ? RouterKind::least_loaded : RouterKind::power_of_two;
  Fleet fleet(world.trace, world.config, times, options);
  fleet.run();
  const RandomStream draws(options.seed, Purpose::routing);
  const auto n = uint64_t(options.num_replicas);
  for (size_t r = 0; r < fleet.replicas().size(); ++r) {
    for (const size_t request : fleet.replicas()[r].requests()) {
      const auto counts = outstanding_at(fleet, world.trace, request);
      if (options.router == RouterKind::least_loaded) {
        RC_ASSERT(counts[r] == std::ranges::min(counts));
      } else {
        const size_t first = draws.below(n, 2 * request), second = draws.below(n, 2 * request + 1);
        RC_ASSERT(r == (counts[second] < counts[first] ? second : first));
      }
    }
  }
  RC_CLASSIFY(options.num_replicas > 1, "several replicas");
}

}  // namespace
}  // namespace loratory::sim
