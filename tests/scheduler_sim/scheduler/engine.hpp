#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/support/tier_counts.hpp"
#include "scheduler_sim/scheduler/scheduler.hpp"

namespace loratory::sim {

/// A scheduler with adapters "1", "2", ... (uid = that number) and a clock that a test turns by
/// hand. Transfers end when the test says so; a blocking step ends those it waits for.
class Engine {
 public:
  using Rows = std::vector<std::pair<char, uint32_t>>;  // request, tokens

  static SchedulerConfig config(int32_t max_loras, LoadMode mode = LoadMode::blocking) {
    SchedulerConfig c;
    c.residency.max_loras = max_loras;
    c.residency.max_cpu_loras = 16;
    c.block_size = 4;
    c.num_blocks = 1000;
    c.load_mode = mode;
    c.pack = PackMode::off;
    return c;
  }

  explicit Engine(const SchedulerConfig& c, int num_adapters = 8) : scheduler(c, &log) {
    for (int i = 1; i <= num_adapters; ++i) {
      scheduler.register_adapter(std::to_string(i), 8, 1, false, 0);
    }
  }

  /// Brings adapters to the CPU, as an earlier request would have.
  void preload(int num_adapters) {
    for (int i = 1; i <= num_adapters; ++i) {
      submit('~', i, 1, 1);
      finish_transfers();
      scheduler.abort('~', now_ns);
    }
    log.all.clear();
  }

  SubmitStatus submit(char id, int adapter, uint32_t prompt, uint32_t max_new, int priority = 0) {
    RequestSpec spec;
    spec.id = uint64_t(id);
    spec.adapter = Uid(adapter);
    spec.num_prompt_tokens = prompt;
    spec.max_new_tokens = max_new;
    spec.priority = priority;
    return submit(spec);
  }
  SubmitStatus submit(const RequestSpec& spec) {
    const SubmitStatus status = scheduler.submit(spec, now_ns);
    take_starts();
    return status;
  }

  /// Plans and returns the rows. The step stays in flight if there are any.
  Rows plan() {
    ++now_ns;
    rows = scheduler.plan(now_ns).rows;
    take_starts();
    Rows out;
    for (const StepRow& row : rows) {
      out.emplace_back(char(scheduler.request(row.request).id), row.num_tokens);
    }
    return out;
  }
  void commit(std::vector<int32_t> sampled = {}) {
    while (!scheduler.step_can_start()) finish_transfers();
    ++now_ns;
    scheduler.commit({sampled}, now_ns);
    take_starts();
  }
  Rows step() {
    Rows out = plan();
    if (!out.empty()) commit();
    return out;
  }

  void finish_load(bool ok) {
    const Uid uid = loads.front();
    loads.pop_front();
    scheduler.load_done(uid, ok, now_ns);
    take_starts();
  }
  void finish_copy() {
    const Uid uid = copies.front();
    copies.pop_front();
    scheduler.copy_done(uid, now_ns);
    take_starts();
  }
  void finish_transfers() {
    while (!loads.empty()) finish_load(true);
    while (!copies.empty()) finish_copy();
  }

  AdapterRef ref(int adapter) const { return scheduler.residency().find(std::to_string(adapter)); }
  bool is_live(char id) const { return scheduler.find_request(uint64_t(id)) != kNoRequest; }
  const Request& request(char id) const {
    return scheduler.request(scheduler.find_request(uint64_t(id)));
  }
  /// Owners of the slots by adapter number, 0 = free.
  std::vector<int> slots() const {
    std::vector<int> owners;
    for (int32_t i = 0; i < scheduler.config().residency.max_loras; ++i) {
      owners.push_back(int(slot_owner(scheduler.residency(), i)));
    }
    return owners;
  }
  /// Decisions of one kind since log.all was cleared.
  template <typename Kind>
  std::vector<Kind> decisions() const {
    std::vector<Kind> out;
    for (const Decision& d : log.all) {
      if (d.is<Kind>()) out.push_back(*d.get_if<Kind>());
    }
    return out;
  }
  /// How the request ended, empty if it did not.
  std::optional<FinishReason> end_of(char id) const {
    for (const Decision& d : log.all) {
      const auto* finish = d.get_if<decision::Finish>();
      if (finish != nullptr && d.request == uint64_t(id)) return finish->reason;
    }
    return std::nullopt;
  }

 private:
  void take_starts() {
    for (const LoadStart& load : scheduler.starts().loads) loads.push_back(load.uid);
    for (const CopyStart& copy : scheduler.starts().copies) copies.push_back(copy.uid);
    scheduler.starts().clear();
  }

 public:
  struct Log : DecisionSink {
    void on_decision(const Decision& d) override { all.push_back(d); }
    std::vector<Decision> all;
  };
  Log log;
  Scheduler scheduler;
  int64_t now_ns = 0;
  std::vector<StepRow> rows;  // of the last plan
  std::deque<Uid> loads, copies;
};

}  // namespace loratory::sim
