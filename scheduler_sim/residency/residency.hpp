#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace loratory::sim {

/// Identity of an adapter: 64 bits, starts at 1, never reused. 0 is the base model.
using Uid = uint64_t;
inline constexpr Uid kBaseUid = 0;

/// Place of a registered adapter inside one Residency, for questions to it. Valid until its unload
/// completes, and then reused: whoever keeps an adapter over time keeps its uid.
using AdapterRef = uint32_t;
inline constexpr AdapterRef kBaseRef = UINT32_MAX;

inline constexpr int32_t kNoSlot = -1;

/// Where an adapter's weights are. GPU-resident implies CPU-resident (the tiers are inclusive).
enum class AdapterState : uint8_t { on_disk, loading, on_cpu, copying, on_gpu };

enum class EvictionPolicy : uint8_t { lru, fifo, lfu };

/// Which adapter leaves the CPU for another one; within a group the least recent. [5.16] [5.41]
enum class CpuEviction : uint8_t {
  idle_first,  ///< nobody waits for it, then not on the GPU; a prefetch takes idle ones only
  gpu_last,    ///< not on the GPU, then on the GPU, whoever waits (TokenSpeed)
  lru          ///< the least recent of all (vLLM)
};

struct ResidencyConfig {
  int32_t max_loras = 8;         ///< GPU slots, >= 1
  int32_t max_cpu_loras = 32;    ///< CPU places, >= max_loras
  int32_t num_load_workers = 2;  ///< concurrent disk -> CPU loads
  EvictionPolicy gpu_eviction = EvictionPolicy::lru;
  CpuEviction cpu_eviction = CpuEviction::idle_first;
  bool prefetch = true;  ///< a submission loads its adapter; false: only a promise does [5.42]
};

/// A transfer the caller must start now and report back (load_done / copy_done).
struct LoadStart {
  Uid uid;
  int64_t bytes;
};
struct CopyStart {
  Uid uid;
  int32_t slot;
  uint64_t generation;  ///< of the slot with this adapter in it
  int64_t bytes;
};

/// An adapter that lost its place: its slot, and `from_cpu` the weights in host memory too.
struct Eviction {
  Uid uid;
  int32_t slot;  ///< the slot it held, kNoSlot if none
  bool from_cpu;
};

/// What changed in a call: transfers to start and evictions made, in order.
struct ResidencyActions {
  std::vector<LoadStart> loads;
  std::vector<CopyStart> copies;
  std::vector<Eviction> evictions;
  void clear() { loads.clear(), copies.clear(), evictions.clear(); }
};

enum class RegisterStatus : uint8_t { ok, exists };
enum class PinStatus : uint8_t { ok, busy, unknown };
enum class LoadOutcome : uint8_t { installed, retried, failed, dropped };

/// Adapter registry and the three residency tiers: disk > CPU (max_cpu_loras) > GPU (max_loras).
///
/// Pure bookkeeping: no clock, no I/O. It decides what is loaded, copied and evicted; the caller
/// moves the bytes and reports back. Every decision follows docs/scheduler.md, part "Residency":
///   An adapter claims a GPU place while it has a running request, is pinned, or was promised one.
///   There are at most max_loras claimants (G in docs/scheduler.md), and none is ever a victim.
///   Capacity is never exceeded, not even during a load.
/// Repeatable: equal call sequences give equal decisions.
/// Cost  a call costs the GPU places, and the logarithm of what waits for a load or is on the CPU:
/// jobs of either kind, and adapters that may leave the CPU, are kept in order.
class Residency {
 public:
  explicit Residency(const ResidencyConfig& config);

  // --- registry -----------------------------------------------------------------------------
  struct Registered {
    RegisterStatus status;
    AdapterRef adapter;  ///< valid if status is ok
  };
  /// A new uid under `name`. An active name is refused unless `replace`, which retires the old uid.
  Registered register_adapter(std::string_view name, uint32_t rank, int64_t bytes,
                              bool replace = false);
  /// kBaseRef if no such active name.
  AdapterRef find(std::string_view name) const;
  AdapterRef find_uid(Uid uid) const { return uid < by_uid_.size() ? by_uid_[uid] : kBaseRef; }
  /// The uid that an active name stands for now; kBaseUid if there is none.
  Uid find_name(std::string_view name) const {
    const AdapterRef ref = find(name);
    return ref == kBaseRef ? kBaseUid : adapters_[ref].uid;
  }
  /// Takes the name away at once; weights go when the last request of it is done. Returns false for
  /// an unknown name.
  bool unload(std::string_view name);

  PinStatus pin(AdapterRef adapter);
  void unpin(AdapterRef adapter);

  // --- life of a request --------------------------------------------------------------------
  void submitted(AdapterRef adapter);     ///< counts it in flight; may start a prefetch
  void admitted(AdapterRef adapter);      ///< waiting -> running
  void preempted(AdapterRef adapter);     ///< running -> waiting
  void left_running(AdapterRef adapter);  ///< a running request ended
  void left_waiting(AdapterRef adapter);  ///< a waiting request ended (abort, error)

  /// Promises the adapter a GPU place, for a waiting request. Needs num_claimants() < max_loras, or
  /// a claim that it has already. The promise ends when a request of it is admitted, when nobody
  /// needs it any more, or when its load fails.
  void promise(AdapterRef adapter);
  /// The adapter runs in the step being planned: refreshes its GPU recency by `num_steps` uses.
  void touch_gpu(AdapterRef adapter, int64_t num_steps = 1) {
    Adapter& a = adapters_[adapter];
    a.gpu_clock = ++clock_;
    a.num_uses += num_steps;
  }
  /// Blocking mode: gives the adapter a slot now if one can be had (else when its copy starts) and
  /// queues its transfers.
  void assign_slot_now(AdapterRef adapter);

  // --- transfers ----------------------------------------------------------------------------
  LoadOutcome load_done(AdapterRef adapter, bool ok);
  void copy_done(AdapterRef adapter);
  /// Starts every load and copy that can start. Cheap when nothing changed since the last call.
  void start_transfers();
  /// What start_transfers and the calls before it decided since the last clear.
  ResidencyActions& actions() { return actions_; }
  /// Adapters whose unload completed since the last call (their namespace must be evicted).
  std::vector<Uid> take_unloaded();

  // --- questions ----------------------------------------------------------------------------
  Uid uid(AdapterRef a) const { return adapters_[a].uid; }
  uint32_t rank(AdapterRef a) const { return adapters_[a].rank; }
  int64_t bytes(AdapterRef a) const { return adapters_[a].bytes; }
  const std::string& name(AdapterRef a) const { return adapters_[a].name; }
  AdapterState state(AdapterRef a) const { return adapters_[a].state; }
  int32_t slot(AdapterRef a) const { return adapters_[a].slot; }
  /// Its slot, and that slot's generation. Asked for each row of each step.
  struct Place {
    int32_t slot = kNoSlot;
    uint64_t generation = 0;  ///< 0 = no slot
  };
  const Place& place(AdapterRef a) const { return places_[a]; }
  /// kBaseRef if the slot is free.
  AdapterRef owner(int32_t slot) const { return slots_[slot].owner; }
  /// How often the slot was given to an adapter; metadata carries it so that stale use is caught.
  uint64_t slot_generation(int32_t slot) const { return slots_[slot].generation; }
  bool ready(AdapterRef a) const { return adapters_[a].state == AdapterState::on_gpu; }
  bool claims_place(AdapterRef a) const { return claims_place(adapters_[a]); }
  bool pinned(AdapterRef a) const { return adapters_[a].pinned; }
  bool promised(AdapterRef a) const { return adapters_[a].promised; }
  bool retiring(AdapterRef a) const { return adapters_[a].retiring; }
  int32_t num_running(AdapterRef a) const { return adapters_[a].num_running; }
  int32_t num_claimants() const { return int32_t(claimants_.size()); }
  const std::vector<AdapterRef>& claimants() const { return claimants_; }  ///< in any order
  /// Grows with every change of whether or why an adapter claims a place.
  uint64_t num_claim_changes() const { return num_claim_changes_; }
  int32_t num_on_gpu() const { return num_on_gpu_; }  ///< slots taken
  bool transfer_in_flight() const { return num_loading_ > 0 || copying_ != kBaseRef; }
  AdapterRef ref_limit() const { return AdapterRef(adapters_.size()); }
  const ResidencyConfig& config() const { return config_; }

 private:
  struct alignas(64) Adapter {
    // What steps and requests ask: one cache line.
    Uid uid = 0;  // 0 = the entry is free
    AdapterState state = AdapterState::on_disk;
    bool pinned = false, promised = false, retiring = false;
    bool may_have_moved = false;  // in departures_; it is in moved_
    int32_t slot = kNoSlot;
    uint32_t rank = 0;
    uint32_t claimant_index = 0;  // place in claimants_
    int32_t num_inflight = 0;     // submitted and not finished
    int32_t num_running = 0;
    uint64_t cpu_clock = 0, gpu_clock = 0;
    int64_t num_uses = 0;  // while in the slot
    uint64_t job = 0;      // number of its queued job, 0 = none

    uint64_t slot_loaded_clock = 0;
    int64_t bytes = 0;
    std::string name;
    uint8_t num_failures = 0;
    std::optional<std::pair<int, uint64_t>> departure;  // its place in departures_
  };
  /// By number: jobs start in the order of queueing.
  using Jobs = std::set<std::pair<uint64_t, AdapterRef>>;
  struct Slot {
    AdapterRef owner = kBaseRef;
    uint64_t generation = 0;
  };

  static bool claims_place(const Adapter& a) { return a.num_running > 0 || a.pinned || a.promised; }
  static bool on_cpu_or_better(const Adapter& a) { return a.state >= AdapterState::on_cpu; }
  template <typename Change>
  void change_claim(AdapterRef adapter, Change change);
  void drop_unneeded_promise(AdapterRef adapter);
  void drop_promise(AdapterRef adapter);
  void request_ended(AdapterRef adapter);
  void retire(AdapterRef adapter);
  void finish_unload_if_idle(AdapterRef adapter);

  void queue_job(AdapterRef adapter);
  void cancel_job_if_idle(AdapterRef adapter);
  Jobs& jobs_like(const Adapter& a) { return a.promised ? demand_jobs_ : prefetch_jobs_; }
  void set_promised(AdapterRef adapter, bool promised);
  bool start_one_load();
  AdapterRef cpu_victim(bool demand);
  int departure_group(const Adapter& a) const;
  void update_departure(AdapterRef adapter);
  void settle_departures();
  void settle_departure(AdapterRef adapter);
  void evict_from_cpu(AdapterRef victim);
  void start_copy();
  AdapterRef gpu_victim() const;
  bool older_on_gpu(const Adapter& a, const Adapter& b) const;
  bool take_slot(AdapterRef adapter);
  void evict_from_gpu(AdapterRef victim);
  void free_slot_of(AdapterRef adapter);

  ResidencyConfig config_;
  std::vector<Adapter> adapters_;
  std::vector<Place> places_;  // by AdapterRef
  std::vector<AdapterRef> free_refs_;
  std::unordered_map<std::string, AdapterRef> by_name_;
  std::vector<AdapterRef> by_uid_;  // kBaseRef: gone
  std::vector<Slot> slots_;
  std::vector<AdapterRef> promised_;  // in the order of the promises
  Jobs demand_jobs_, prefetch_jobs_;  // queued disk -> CPU jobs: of promised adapters, of others
  uint64_t last_job_ = 0;
  /// Adapters that may leave the CPU, first to last: by group, then the least recent. As it was
  /// before what happened to those in moved_.
  std::set<std::pair<std::pair<int, uint64_t>, AdapterRef>> departures_;
  std::vector<AdapterRef> moved_;  // each once
  std::vector<Uid> unloaded_;
  ResidencyActions actions_;
  Uid next_uid_ = 1;
  uint64_t clock_ = 0;
  std::vector<AdapterRef> claimants_;
  uint64_t num_claim_changes_ = 0;
  int32_t num_on_gpu_ = 0, num_on_cpu_ = 0, num_pinned_ = 0, num_loading_ = 0;
  AdapterRef copying_ = kBaseRef;
  bool changed_ = false;  // something happened that may let a transfer start
};

}  // namespace loratory::sim
