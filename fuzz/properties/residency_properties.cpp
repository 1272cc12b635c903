// The residency tiers alone against lists (fuzz/models/naive_residency.hpp): P33 capacity, P34
// victims for every policy, P39/P40 unload and reload, P41 loads, P43 pins. Random operations that
// obey the callers' rules (a request is admitted when its adapter is ready or in blocking mode,
// promises need a place); after each of them actions and states must be the same.
#include <algorithm>
#include <set>

#include "fuzz/models/naive_residency.hpp"
#include "fuzz/support/seeded_case.hpp"
#include "fuzz/support/tier_counts.hpp"

namespace loratory::sim {

inline std::ostream& operator<<(std::ostream& out, const TierEvent& e) {
  static constexpr const char* kNames[] = {"load", "copy", "eviction", "unloaded"};
  return out << fmt::format("{} uid {} slot {} cpu {}", kNames[int(e.kind)], e.uid, e.slot,
                            e.from_cpu);
}

namespace {

ResidencyConfig random_config(Draw& draw) {
  ResidencyConfig c;
  c.max_loras = int32_t(draw.between(1, 4));
  c.max_cpu_loras = c.max_loras + int32_t(draw(4));
  c.num_load_workers = int32_t(draw.between(1, 3));
  c.gpu_eviction = draw.one_of({EvictionPolicy::lru, EvictionPolicy::fifo, EvictionPolicy::lfu});
  c.cpu_eviction = draw.one_of(
      {CpuEviction::idle_first, CpuEviction::idle_first, CpuEviction::gpu_last, CpuEviction::lru});
  c.prefetch = !draw.one_in(4);
  return c;
}

class TierPair {
 public:
  explicit TierPair(uint64_t seed) : draw_(seed), config_(random_config(draw_)) {
    for (int i = 0; i < 7; ++i) register_one();
  }

  void operate() {
    switch (draw_(12)) {
      case 0:
      case 1:
        submit();
        break;
      case 2:
      case 3:
        promise_or_admit();
        break;
      case 4:
        run_a_step();
        break;
      case 5:
        end_a_request();
        break;
      case 6:
        draw_.one_in(3) ? preempt() : end_a_request();
        break;
      case 7:
        pin_or_unpin();
        break;
      case 8:
        draw_.one_in(2) ? unload() : register_one();
        break;
      case 9:
        finish_load(/*ok=*/!draw_.one_in(3));
        break;
      case 10:
        finish_load(true);
        break;
      default:
        finish_copy();
        break;
    }
    settle();
  }

  // P65 for the tiers: with no request, pin or name left nothing is resident.
  void empty_everything() {
    for (const Uid u : uids()) {
      sut_.unpin(ref(u)), model_.unpin(u);
      end_requests_of(u);
      settle();
      if (!model_.adapters.contains(u) || model_.adapters.at(u).retiring) continue;
      sut_.unload(sut_.name(ref(u))), model_.unload(model_.adapters.at(u).name);
      settle();
    }
    while (!model_.loading.empty() || model_.copying != 0) {
      finish_load(true), settle();
      finish_copy(), settle();
    }
    RC_ASSERT(num_registered(sut_) + sut_.num_on_gpu() + sut_.num_claimants() == 0);
    RC_ASSERT(!sut_.transfer_in_flight());
  }

  bool evicted = false, pinned = false, failed = false, unloaded = false;
  const ResidencyConfig& config() const { return config_; }

 private:
  AdapterRef ref(Uid u) const { return sut_.find_uid(u); }
  std::vector<Uid> uids() const {
    std::vector<Uid> out;
    for (const auto& [u, a] : model_.adapters) out.push_back(u);
    return out;
  }
  // A random adapter that satisfies `test`, 0 if there is none.
  template <typename Test>
  Uid pick(Test test) {
    std::vector<Uid> fits;
    for (const auto& [u, a] : model_.adapters) {
      if (test(u, a)) fits.push_back(u);
    }
    return fits.empty() ? 0 : fits[size_t(draw_(int64_t(fits.size())))];
  }
  using Model = NaiveResidency::Adapter;
  static int num_waiting(const Model& a) { return a.inflight - a.running; }

  void register_one() {
    const std::string name = fmt::format("a{}", draw_(7));
    const bool replace = draw_.one_in(2);
    const auto added = sut_.register_adapter(name, 8, 1, replace);
    const Uid uid = replace ? model_.replace(name) : model_.add(name);
    RC_ASSERT((added.status == RegisterStatus::ok) == (uid != 0));
    if (uid != 0) RC_ASSERT(sut_.uid(added.adapter) == uid);
    settle();
  }

  void unload() {
    const std::string name = fmt::format("a{}", draw_(7));
    const bool known = model_.unload(name);
    RC_ASSERT(sut_.unload(name) == known);
    RC_ASSERT(!sut_.unload(name));
    unloaded |= known;
  }

  void submit() {
    const Uid u = pick([](Uid, const Model& a) { return !a.retiring; });
    if (u == 0) return;
    sut_.submitted(ref(u)), model_.submitted(u);
  }

  void promise_or_admit() {
    const Uid u = pick([&](Uid v, const Model& a) {
      return num_waiting(a) > 0 &&
             (model_.claims_place(v) || model_.num_claimants() < config_.max_loras);
    });
    if (u == 0) return;
    if (model_.on_gpu(u)) {
      sut_.admitted(ref(u)), model_.admitted(u);
    } else {
      sut_.promise(ref(u)), model_.promise(u);
    }
  }

  void run_a_step() {
    for (const Uid u : uids()) {
      if (model_.adapters.at(u).running == 0 || draw_.one_in(3)) continue;
      sut_.touch_gpu(ref(u)), model_.used_in_step(u);
    }
  }

  void end_a_request() {
    const Uid u = pick([](Uid, const Model& a) { return a.inflight > 0; });
    if (u != 0) end_request_of(u);
  }

  // The last one may complete the unload.
  void end_requests_of(Uid u) {
    while (model_.adapters.contains(u) && model_.adapters.at(u).inflight > 0) end_request_of(u);
  }

  void end_request_of(Uid u) {
    const Model& a = model_.adapters.at(u);
    if (a.running > 0 && (num_waiting(a) == 0 || draw_.one_in(2))) {
      sut_.left_running(ref(u)), model_.left_running(u);
    } else {
      sut_.left_waiting(ref(u)), model_.left_waiting(u);
    }
  }

  void preempt() {
    const Uid u = pick([](Uid, const Model& a) { return a.running > 0; });
    if (u != 0) sut_.preempted(ref(u)), model_.preempted(u);
  }

  void pin_or_unpin() {
    const Uid u = pick([](Uid, const Model&) { return true; });
    if (u == 0) return;
    if (draw_.one_in(3)) {
      sut_.unpin(ref(u)), model_.unpin(u);
    } else {
      const bool ok = model_.pin(u);
      RC_ASSERT((sut_.pin(ref(u)) == PinStatus::ok) == ok);
      pinned |= ok;
    }
  }

  void finish_load(bool ok) {
    if (model_.loading.empty()) return;
    const Uid u = model_.loading[size_t(draw_(int64_t(model_.loading.size())))];
    failed |= !ok;
    const LoadOutcome outcome = sut_.load_done(ref(u), ok);
    RC_ASSERT(outcome == model_.load_done(u, ok));
    if (outcome != LoadOutcome::failed) return;
    end_requests_of(u);
  }

  void finish_copy() {
    if (model_.copying == 0) return;
    sut_.copy_done(ref(model_.copying)), model_.copy_done();
  }

  void settle() {
    sut_.start_transfers(), model_.start_transfers();
    std::vector<TierEvent> events;
    for (const Eviction& e : sut_.actions().evictions) {
      events.push_back({TierEvent::Kind::eviction, e.uid, e.slot, e.from_cpu});
      evicted = true;
    }
    for (const LoadStart& load : sut_.actions().loads) {
      events.push_back({TierEvent::Kind::load, load.uid});
    }
    for (const CopyStart& copy : sut_.actions().copies) {
      events.push_back({TierEvent::Kind::copy, copy.uid, copy.slot});
    }
    sut_.actions().clear();
    for (const Uid u : sut_.take_unloaded()) events.push_back({TierEvent::Kind::unloaded, u});
    RC_ASSERT(events == model_.take_events());
    check();
  }

  void check() {
    RC_ASSERT(num_registered(sut_) == int32_t(model_.adapters.size()));
    int32_t on_gpu = 0;
    for (const auto& [u, a] : model_.adapters) {
      const AdapterRef r = ref(u);
      RC_ASSERT(r != kBaseRef);
      RC_ASSERT(sut_.state(r) == model_.state(u));
      RC_ASSERT(sut_.slot(r) == model_.slot_of(u));
      RC_ASSERT(sut_.claims_place(r) == model_.claims_place(u));
      RC_ASSERT(sut_.promised(r) == NaiveResidency::has(model_.promised, u));
      RC_ASSERT(sut_.pinned(r) == NaiveResidency::has(model_.pinned, u));
      const bool has_slot = sut_.slot(r) != kNoSlot;
      on_gpu += has_slot;
      if (has_slot) RC_ASSERT(sut_.state(r) >= AdapterState::on_cpu);  // inclusive
    }
    // P33, by counting; P43.
    RC_ASSERT(on_gpu == sut_.num_on_gpu());
    RC_ASSERT(on_gpu <= config_.max_loras);
    RC_ASSERT(num_on_cpu(sut_) <= config_.max_cpu_loras);
    RC_ASSERT(sut_.num_claimants() <= config_.max_loras);
    RC_ASSERT(num_pinned(sut_) <= config_.max_loras - 1);
    RC_ASSERT(num_in_state(sut_, AdapterState::loading) <= config_.num_load_workers);
  }

  Draw draw_;
  ResidencyConfig config_;
  Residency sut_{config_};
  NaiveResidency model_{config_};
};

RC_GTEST_PROP(Residency, EqualsTheListModel, ()) {
  const SeededCase c = any_seeded_case(300);
  TierPair pair(c.seed);
  for (int i = 0; i < c.num_ops; ++i) pair.operate();
  pair.empty_everything();
  RC_CLASSIFY(pair.config().gpu_eviction == EvictionPolicy::lru, "lru");
  RC_CLASSIFY(pair.config().gpu_eviction == EvictionPolicy::fifo, "fifo");
  RC_CLASSIFY(pair.config().gpu_eviction == EvictionPolicy::lfu, "lfu");
  RC_CLASSIFY(!pair.config().prefetch, "no prefetch");
  RC_CLASSIFY(pair.evicted, "evicts");
  RC_CLASSIFY(pair.pinned, "pins");
  RC_CLASSIFY(pair.failed, "loads fail");
  RC_CLASSIFY(pair.unloaded, "unloads");
}

}  // namespace
}  // namespace loratory::sim
