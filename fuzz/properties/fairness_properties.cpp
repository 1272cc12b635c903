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

/// An engine whose pool never runs out and whose adapters are all on the CPU.
class Stream {
 public:
  explicit Stream(Draw& draw) : draw_(draw), scheduler_(config(draw), &log_) {
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
    c.t_starve_ns = SchedulerConfig::kNever;
    c.drain_factor = draw.one_of({0.0, 1.0, 1.2, 2.0});
    return c;
  }

  uint64_t submit(Uid adapter, uint32_t prompt, uint32_t max_new) {
    RequestSpec spec;
    spec.id = next_id_++;
    spec.adapter = adapter;
    spec.num_prompt_tokens = prompt;
    spec.max_new_tokens = max_new;
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
  bool drains(AdapterRef adapter) const { return scheduler_.draining() == adapter; }

  Draw& draw_;
  Log log_;
  Scheduler scheduler_;
  int64_t now_ = 0;
  uint64_t next_id_ = 0;
};

// P58. L adapters have an endless stream of requests each; `num_late` others have one request, at
// a random time. Steps from reserving to admission <= k (floor(f M) + T + 2) + (older + 1) 2T.
RC_GTEST_PROP(Fairness, NobodyWaitsLongerThanTheBound, ()) {
  const SeededCase c = any_seeded_case(4);
  Draw draw(c.seed);
  Stream engine(draw);
  const SchedulerConfig& config = engine.scheduler_.config();
  const int num_late = c.num_ops;
  const uint32_t max_new = uint32_t(draw.between(1, 12)), longest = 4 + max_new;
  std::vector<uint64_t> late;
  std::vector<int64_t> reserving_since(size_t(num_late), -1), waited(size_t(num_late), -1);
  const int64_t num_older = 3 * config.residency.max_loras + num_late;
  const auto bound = int64_t(num_late * (std::floor(config.drain_factor * max_new) + longest + 2)) +
                     (num_older + 1) * 2 * longest;
  for (int64_t step = 0; step < 100 + bound + config.n_starve; ++step) {
    for (Uid adapter = 1; adapter <= Uid(config.residency.max_loras); ++adapter) {
      for (int64_t i = draw(3); i > 0; --i) {
        engine.submit(adapter, uint32_t(draw.between(1, 4)), uint32_t(draw.between(1, max_new)));
      }
    }
    while (step >= 20 && late.size() < size_t(num_late)) {
      late.push_back(engine.submit(5 + late.size(), 1, 1));
    }
    engine.step();
    for (size_t i = 0; i < late.size(); ++i) {
      if (reserving_since[i] < 0 && engine.reserves(late[i])) reserving_since[i] = step;
      if (waited[i] >= 0 || engine.waits(late[i])) continue;
      waited[i] = reserving_since[i] < 0 ? 0 : step - reserving_since[i];
    }
  }
  for (const int64_t steps : waited) {
    RC_LOG() << fmt::format("waited {} steps, bound {}\n", steps, bound);
    RC_ASSERT(steps >= 0);
    RC_ASSERT(steps <= bound);
    RC_CLASSIFY(steps > 0, "had to reserve");
  }
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
  const uint64_t resident = engine.submit(Uid(1 + draw(num_places)), 3, 2);
  const AdapterRef its_adapter =
      engine.scheduler_.request(engine.scheduler_.find_request(resident)).adapter;
  engine.step();
  RC_ASSERT(!engine.waits(base));
  RC_ASSERT(!engine.waits(resident) || engine.drains(its_adapter));
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
