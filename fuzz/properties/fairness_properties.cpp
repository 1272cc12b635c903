// Waiting has an end and an order: P58 (the bound of [7.10] under adversarial streams), P59, P60.
// The streams are made to starve: adapters with places always have the next request ready.
#include <algorithm>
#include <cmath>
#include <set>

#include "fuzz/support/seeded_case.hpp"
#include "scheduler_sim/scheduler/scheduler.hpp"

namespace loratory::sim {
namespace {

struct Log : DecisionSink {
  void on_decision(const Decision& d) override { all.push_back(d); }
  std::vector<Decision> all;
};

// An engine whose pool never runs out and whose adapters are all on the CPU.
class Stream {
 public:
  explicit Stream(Draw& draw) : Stream(draw, config(draw)) {}
  Stream(Draw& draw, const SchedulerConfig& config) : draw_(draw), scheduler_(config, &log_) {
    for (int i = 0; i < 8; ++i) scheduler_.register_adapter(fmt::format("a{}", i), 8, 1, false, 0);
    for (Uid adapter = 1; adapter <= 8; ++adapter) {
      submit(adapter, 1, 1);
      finish_transfers();
      scheduler_.abort(next_id_ - 1, 0);
    }
    log_.all.clear();
  }

  static SchedulerConfig config(Draw& draw) {
    SchedulerConfig c;
    c.residency.max_loras = int32_t(draw.between(1, 4));
    c.residency.max_cpu_loras = 8;
    c.block_size = 4;
    c.num_blocks = 20'000;
    c.max_num_seqs = 256;
    c.load_mode = draw.one_of({LoadMode::overlap, LoadMode::blocking});
    c.n_starve = draw.one_of<int64_t>({0, 1, 5, 20});
    c.t_starve_ns = kNever;
    c.drain_factor = draw.one_of({0.0, 1.0, 1.2, 2.0});
    return c;
  }

  uint64_t submit(Uid adapter, uint32_t prompt, uint32_t max_new, int32_t priority = 0) {
    RequestSpec spec;
    spec.id = next_id_++;
    spec.adapter = adapter;
    spec.num_prompt_tokens = prompt;
    spec.max_new_tokens = max_new;
    spec.priority = priority;
    RC_ASSERT(scheduler_.submit(spec, now_) == SubmitStatus::ok);
    finish_transfers();
    return spec.id;
  }

  void step() {
    ++now_;
    const StepPlan& plan = scheduler_.plan(now_);
    finish_transfers();
    if (!plan.empty()) scheduler_.commit({}, now_);
    finish_transfers();
  }

  void finish_transfers() {
    while (!scheduler_.starts().loads.empty() || !scheduler_.starts().copies.empty()) {
      const ResidencyActions now = scheduler_.starts();
      scheduler_.starts().clear();
      for (const LoadStart& load : now.loads) scheduler_.load_done(load.uid, true, now_);
      for (const CopyStart& copy : now.copies) scheduler_.copy_done(copy.uid, now_);
    }
  }

  bool waits(uint64_t id) const {
    const RequestRef ref = scheduler_.find_request(id);
    return ref != kNoRequest && scheduler_.request(ref).state == RequestState::queued;
  }
  bool reserves(uint64_t id) const {
    return waits(id) && scheduler_.request(scheduler_.find_request(id)).reservation >= 0;
  }
  bool has_drained(Uid adapter) const {
    return std::ranges::any_of(
        log_.all, [&](const Decision& d) { return d.is<decision::Drain>() && d.uid == adapter; });
  }

  Draw& draw_;
  Log log_;
  Scheduler scheduler_;
  int64_t now_ = 0;
  uint64_t next_id_ = 0;
};

// How many steps some requests wait from reserving to admission.
class Waits {
 public:
  void add(uint64_t id) { requests_.push_back({id}); }
  size_t size() const { return requests_.size(); }
  void look(const Stream& engine, int64_t step) {
    for (Request& r : requests_) {
      if (r.reserving_since < 0 && engine.reserves(r.id)) r.reserving_since = step;
      if (r.waited >= 0 || engine.waits(r.id)) continue;
      r.waited = r.reserving_since < 0 ? 0 : step - r.reserving_since;
    }
  }
  void require_at_most(int64_t bound) const {
    for (const Request& r : requests_) {
      RC_LOG() << fmt::format("waited {} steps, bound {}\n", r.waited, bound);
      RC_ASSERT(r.waited >= 0);
      RC_ASSERT(r.waited <= bound);
      RC_CLASSIFY(r.waited > 0, "had to reserve");
    }
  }

 private:
  struct Request {
    uint64_t id;
    int64_t reserving_since = -1, waited = -1;
  };
  std::vector<Request> requests_;
};

// k (floor(f M) + T + 2) + (older + 1) 2T.
int64_t bound_of(const SchedulerConfig& config, int64_t num_competing, int64_t num_older,
                 uint32_t max_new, uint32_t longest) {
  const auto drain = int64_t(std::floor(config.drain_factor * max_new));
  return num_competing * (drain + longest + 2) + (num_older + 1) * 2 * longest;
}

// P58. L adapters have an endless stream of requests each; `num_late` others have one request, at
// a random time.
RC_GTEST_PROP(Fairness, NobodyWaitsLongerThanTheBound, ()) {
  const SeededCase c = any_seeded_case(4);
  Draw draw(c.seed);
  Stream engine(draw);
  const SchedulerConfig& config = engine.scheduler_.config();
  const int num_late = c.num_ops;
  const uint32_t max_new = uint32_t(draw.between(1, 12)), longest = 4 + max_new;
  const int64_t num_older = 3 * config.residency.max_loras + num_late;
  const int64_t bound = bound_of(config, num_late, num_older, max_new, longest);
  Waits late;
  for (int64_t step = 0; step < 100 + bound + config.n_starve; ++step) {
    for (Uid adapter = 1; adapter <= Uid(config.residency.max_loras); ++adapter) {
      for (int64_t i = draw(3); i > 0; --i) {
        engine.submit(adapter, uint32_t(draw.between(1, 4)), uint32_t(draw.between(1, max_new)));
      }
    }
    while (step >= 20 && late.size() < size_t(num_late)) {
      late.add(engine.submit(5 + late.size(), 1, 1));
    }
    engine.step();
    late.look(engine, step);
  }
  late.require_at_most(bound);
}

// P58 with packed admission [7.23]: the late adapter has a place to come to, but each seat that
// comes free goes to a younger request of adapter 1, which is on the GPU, until the late one
// reserves. A seat comes free within `longest` steps; each time the late request is overtaken, or
// admitted.
RC_GTEST_PROP(Fairness, PackedAdmissionKeepsNobodyOutForEver, ()) {
  const uint64_t seed = *seeds();
  RC_LOG() << "REPRO: packed seed " << seed << '\n';
  Draw draw(seed);
  SchedulerConfig config = Stream::config(draw);
  config.residency.max_loras = int32_t(draw.between(2, 4));
  config.max_num_seqs = uint32_t(draw.between(1, 3));
  config.admission_order = AdmissionOrder::packed;
  Stream engine(draw, config);
  constexpr size_t kMostWaiting = 4;
  const uint32_t max_new = uint32_t(draw.between(1, 12)), longest = 4 + max_new;
  const int64_t bound = (config.n_starve + 1) * longest +
                        bound_of(config, 1, int64_t{kMostWaiting}, max_new, longest);
  constexpr int64_t kArrival = 20;
  uint64_t late = 0;
  int64_t num_overtaking = 0;
  for (int64_t step = 0; step < kArrival + bound; ++step) {
    if (step == kArrival) late = engine.submit(2, 1, 1);
    while (engine.scheduler_.waiting().size() < kMostWaiting) {
      engine.submit(1, uint32_t(draw.between(1, 4)), uint32_t(draw.between(1, max_new)));
    }
    engine.step();
    if (step >= kArrival && engine.waits(late)) ++num_overtaking;
  }
  RC_ASSERT(!engine.waits(late));
  RC_CLASSIFY(num_overtaking > 0, "was overtaken");
}

// P58 with priorities: one or two urgent requests, each of an adapter of its own, under the same
// streams. Base traffic uses up the budget of every walk, so that the two of the lowest priority,
// which reserve long before, are never reached. Only the urgent ones count in the bound.
RC_GTEST_PROP(Fairness, LowerPrioritiesDoNotCount, ()) {
  const SeededCase c = any_seeded_case(2);
  Draw draw(c.seed);
  SchedulerConfig config = Stream::config(draw);
  config.max_num_seqs = uint32_t(draw.between(4, 12));
  config.max_num_batched_tokens = config.max_num_seqs + uint32_t(draw(8));
  Stream engine(draw, config);
  const int64_t num_urgent = c.num_ops, arrival = draw.between(40, 80);
  const uint32_t max_new = uint32_t(draw.between(1, 12)), longest = 4 + max_new;
  const int64_t bound = bound_of(config, num_urgent, num_urgent, max_new, longest);
  Waits urgent;
  for (int64_t step = 0; step < arrival + config.n_starve + 2 * bound; ++step) {
    for (Uid adapter = 1; adapter <= Uid(config.residency.max_loras); ++adapter) {
      engine.submit(adapter, uint32_t(draw.between(1, 4)), uint32_t(draw.between(1, max_new)),
                    int32_t(draw(2)));
    }
    for (uint32_t tokens = 0; tokens < config.max_num_batched_tokens; tokens += 4) {
      engine.submit(kBaseUid, 4, 1, 1);
    }
    if (step == 20) engine.submit(5, 1, 1, 2), engine.submit(6, 1, 1, 2);
    while (step >= arrival && urgent.size() < size_t(num_urgent)) {
      urgent.add(engine.submit(7 + urgent.size(), 1, 1, -1));
    }
    engine.step();
    urgent.look(engine, step);
  }
  urgent.require_at_most(bound);
}

// P59: a base request, or one of an adapter that has its place, behind any number of requests that
// wait for a place, is admitted by the next walk.
RC_GTEST_PROP(Fairness, WhoNeedsNoPlaceDoesNotWait, ()) {
  const SeededCase c = any_seeded_case(40);
  Draw draw(c.seed);
  Stream engine(draw);
  const int64_t num_places = engine.scheduler_.config().residency.max_loras;
  for (int64_t i = 0; i < num_places; ++i) engine.submit(Uid(1 + i), 1, 1000);
  engine.step(), engine.step();
  for (int i = 0; i < c.num_ops; ++i) engine.submit(Uid(5 + draw(4)), 1, 1);
  const uint64_t base = engine.submit(kBaseUid, 3, 2);
  const Uid its_adapter = Uid(1 + draw(num_places));
  const uint64_t resident = engine.submit(its_adapter, 3, 2);
  engine.step();
  RC_ASSERT(!engine.waits(base));
  RC_ASSERT(!engine.waits(resident) || engine.has_drained(its_adapter));
}

// P60: among requests of one adapter and one priority the first admissions are in order of arrival,
// except while that adapter drains.
RC_GTEST_PROP(Fairness, FirstComeFirstServedWithinAnAdapter, ()) {
  const SeededCase c = any_seeded_case(200);
  Draw draw(c.seed);
  Stream engine(draw);
  for (int i = 0; i < c.num_ops; ++i) {
    engine.submit(Uid(1 + draw(8)), uint32_t(draw.between(1, 4)), uint32_t(draw.between(1, 6)));
    if (draw.one_in(2)) engine.step();
  }
  while (engine.scheduler_.num_live() > 0) engine.step();
  std::vector<uint64_t> last_admitted(9, 0);
  std::set<Uid> drained;
  for (const Decision& d : engine.log_.all) {
    if (d.is<decision::Drain>()) drained.insert(d.uid);
    if (!d.is<decision::Admission>() || drained.contains(d.uid)) continue;
    RC_ASSERT(d.request >= last_admitted[d.uid]);
    last_admitted[d.uid] = d.request;
  }
  RC_CLASSIFY(!drained.empty(), "drains");
}

}  // namespace
}  // namespace loratory::sim
