#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "scheduler_sim/residency/residency.hpp"

namespace loratory::sim {

/// What the residency tiers did, in a form that two implementations can be compared by.
struct TierEvent {
  enum class Kind : uint8_t { load, copy, eviction, unloaded };
  Kind kind;
  Uid uid;
  int32_t slot = kNoSlot;
  bool from_cpu = false;
  auto operator<=>(const TierEvent&) const = default;
};

/// Residency (docs/scheduler.md) in lists: who is where is a list of uids in order of recency, and
/// every question is a search. Nothing is cached, nothing is indexed.
class NaiveResidency {
 public:
  explicit NaiveResidency(const ResidencyConfig& config)
      : config_(config), slots(config.max_loras) {}

  struct Adapter {
    std::string name;
    bool retiring = false;
    int inflight = 0, running = 0, failures = 0;
    int64_t uses = 0;
  };

  Uid add(const std::string& name);  // 0: the name is taken
  Uid replace(const std::string& name);
  bool unload(const std::string& name);
  Uid find(const std::string& name) const;

  bool pin(Uid u);
  void unpin(Uid u);
  void submitted(Uid u);
  void admitted(Uid u);
  void preempted(Uid u);
  void left_running(Uid u);
  void left_waiting(Uid u);
  void promise(Uid u);
  void used_in_step(Uid u);
  void needed_by_step(Uid u);  // blocking mode
  LoadOutcome load_done(Uid u, bool ok);
  void copy_done();
  void start_transfers();

  bool claims_place(Uid u) const;
  int num_claimants() const;
  bool on_gpu(Uid u) const { return has(copied, u); }
  int32_t slot_of(Uid u) const;
  AdapterState state(Uid u) const;
  int64_t num_on_cpu() const { return int64_t(cpu.size() + loading.size()); }
  std::vector<TierEvent> take_events();

  static bool has(const std::vector<Uid>& list, Uid u);

  ResidencyConfig config_;
  std::map<Uid, Adapter> adapters;  // registered or retiring
  std::vector<Uid> cpu;             // weights in host memory, least recent first
  std::vector<Uid> copied;          // on the GPU: the copy into their slot is done
  std::vector<Uid> gpu;             // least recently used first; may hold uids without a slot
  std::vector<Uid> slot_loads;      // by time of the copy into their slot
  std::vector<Uid> slots;           // owner, 0 = free
  std::vector<Uid> pinned, promised, jobs, loading;
  Uid copying = 0;
  Uid last_uid = 0;

 private:
  static void drop(std::vector<Uid>& list, Uid u);
  static void to_back(std::vector<Uid>& list, Uid u);
  void want_load(Uid u);
  void ended(Uid u);
  void tidy(Uid u);  // promises and jobs nobody needs
  void finish_unload(Uid u);
  void retire(Uid u);
  Uid cpu_victim(bool demand) const;
  Uid cpu_victim_of_engine() const;
  Uid gpu_victim() const;
  void evict_cpu(Uid u);
  void free_slot(Uid u);
  bool take_slot(Uid u);
  bool start_a_load();
  bool start_a_copy();

  std::vector<TierEvent> evictions_, loads_, copies_, unloaded_;
};

}  // namespace loratory::sim
