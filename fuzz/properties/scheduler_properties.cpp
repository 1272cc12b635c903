// The scheduler against a model of it that is written like its rules: lists, loops, no index
// (fuzz/models/naive_scheduler.hpp). Random operations drive both; after each of them every
// decision, every row and every table must be the same. In between the run also tests what holds
// without a model: limits of a step, tiers, conservation of blocks; and at its end that everything
// finishes and that nothing is left behind.
#include <algorithm>
#include <map>
#include <set>

#include "fuzz/models/naive_scheduler.hpp"
#include "fuzz/support/handed_out.hpp"
#include "fuzz/support/scheduler_cases.hpp"
#include "fuzz/support/seeded_case.hpp"
#include "fuzz/support/tier_counts.hpp"
#include "scheduler_sim/simulator/event_log.hpp"

namespace loratory::sim {

inline bool operator==(const Decision& a, const Decision& b) {
  return EventLog::record_of(a) == EventLog::record_of(b);
}
inline std::ostream& operator<<(std::ostream& out, const Decision& d) {
  return out << EventLog::line_of(d);
}
inline std::ostream& operator<<(std::ostream& out, const NaiveScheduler::Row& row) {
  return out << fmt::format("request {} computed {} tokens {} decode {} samples {}", row.id,
                            row.computed, row.tokens, row.decode, row.samples);
}

namespace {

struct DecisionList : DecisionSink {
  void on_decision(const Decision& d) override { all.push_back(d); }
  std::vector<Decision> all;
};

// How often the interesting things happened.
struct Coverage {
  int preemptions = 0, drains = 0, reservations = 0, evictions = 0, failures = 0, hits = 0;
  int stretches = 0, unloads = 0, errors = 0;
};

// The scheduler and the model of it, driven by the same operations. With many adapters, which are
// slow to model, a request of each of them waits at the start, and tables are compared now and
// then.
class Pair {
 public:
  explicit Pair(uint64_t seed)
      : draw_(seed),
        config_(random_scheduler_config(draw_)),
        samples_(draw_.one_in(2)),
        num_adapters_(draw_.one_in(100) ? draw_.between(100, 300) : 6),
        sut_(config_, &log_),
        model_(config_) {
    for (int i = 0; i < num_adapters_; ++i) add_adapter(fmt::format("a{}", i), false);
    for (int i = 0; has_many_adapters() && i < num_adapters_; ++i) submit(fmt::format("a{}", i));
  }

  void operate() {
    now_ += draw_(3) * draw_(20);
    switch (draw_(16)) {
      case 0:
      case 1:
      case 2:
      case 3:
        submit();
        break;
      case 4:
        abort();
        break;
      case 5:
        draw_.one_in(4) ? pin_or_unpin() : submit();
        break;
      case 6:
        draw_.one_in(4) ? reload() : finish_a_transfer(false);
        break;
      case 7:
      case 8:
      case 9:
        finish_a_transfer(draw_.one_in(6));
        break;
      default:
        advance_step();
        break;
    }
    check();
  }

  // Every request ends within a finite number of steps ([7.11]), whatever stays pinned.
  void run_to_the_end() {
    for (int i = 0; sut_.num_live() > 0; ++i) {
      RC_LOG() << "still live: " << sut_.num_live() << '\n';
      RC_ASSERT(i < 100'000);
      ++now_;
      advance_step();
      if (draw_.one_in(2)) finish_a_transfer(false);
      check();
    }
  }

  // P65: after all requests ended and all adapters are unloaded every table is empty.
  void unload_everything() {
    if (step_ != nullptr) commit();
    for (int i = 0; i < num_adapters_; ++i) unload(fmt::format("a{}", i), false);
    while (!loads_.empty() || copying_ != kBaseUid) finish_a_transfer(false);
    check();
    const Residency& tiers = sut_.residency();
    RC_ASSERT(num_registered(tiers) == 0);
    RC_ASSERT(tiers.num_on_gpu() + tiers.num_claimants() == 0);
    RC_ASSERT(!tiers.transfer_in_flight());
    RC_ASSERT(sut_.blocks().num_referenced() == 0U);
    RC_ASSERT(sut_.blocks().num_allocatable() == config_.num_blocks - 1);
    // Only base blocks are left to match; check() has compared how many they are.
    for (const auto& [text, key] : key_of_text_) {
      RC_ASSERT(text.starts_with("uid 0|") || sut_.blocks().find(key) == kNullBlock);
    }
  }

  const SchedulerConfig& config() const { return config_; }
  const Coverage& coverage() const { return coverage_; }
  bool has_many_adapters() const { return num_adapters_ > 6; }

 private:
  // --- operations ---------------------------------------------------------------------------
  void submit() { submit(draw_.one_in(5) ? "" : random_name()); }

  // No name: for the base model.
  void submit(const std::string& name) {
    RandomRequest r = random_request(draw_, config_, next_id_++);
    r.spec.tokens = r.tokens;
    r.spec.stop_tokens = r.stops;
    r.spec.block_contents = r.block_contents;
    r.spec.adapter = name.empty() ? kBaseUid : model_.tiers.find(name);
    const SubmitStatus status = sut_.submit(r.spec, now_);
    RC_ASSERT(status == SubmitStatus::ok);
    model_.submit(r.spec, now_);
  }

  void abort() {
    if (next_id_ == 0) return;
    const uint64_t id = next_id_ - 1 - uint64_t(draw_(std::min<int64_t>(int64_t(next_id_), 12)));
    for (int64_t times = draw_.between(1, 2); times > 0; --times) {  // the second is ignored
      sut_.abort(id, now_);
      model_.abort(id, now_);
    }
  }

  void pin_or_unpin() {
    const Uid uid = model_.tiers.find(random_name());
    if (uid == 0) return;
    if (draw_.one_in(2)) {
      RC_ASSERT((sut_.pin(uid, now_) == PinStatus::ok) == model_.pin(uid, now_));
    } else {
      sut_.unpin(uid, now_);
      model_.unpin(uid, now_);
    }
  }

  void add_adapter(const std::string& name, bool replace) {
    const auto added = sut_.register_adapter(name, 8, /*bytes=*/1, replace, now_);
    const Uid uid = model_.add_adapter(name, replace, now_);
    RC_ASSERT((added.status == RegisterStatus::ok) == (uid != 0));
    if (uid == 0) return;
    RC_ASSERT(added.uid == uid);
    RC_ASSERT(seen_uids_.insert(uid).second);  // [5.1] never reused
  }

  void unload(const std::string& name, bool abort_requests) {
    const bool known = sut_.unload_adapter(name, abort_requests, now_);
    RC_ASSERT(known == (model_.tiers.find(name) != 0));
    model_.unload(name, abort_requests, now_);
  }

  void reload() {
    const std::string name = random_name();
    ++coverage_.unloads;
    if (draw_.one_in(2)) unload(name, draw_.one_in(3));
    add_adapter(name, draw_.one_in(2));
  }

  void finish_a_transfer(bool fails) {
    take_starts();
    const bool copies = copying_ != kBaseUid && (loads_.empty() || draw_.one_in(2));
    if (copies) {
      RC_ASSERT(model_.tiers.copying == copying_);
      sut_.copy_done(std::exchange(copying_, kBaseUid), now_);
      model_.copy_done(now_);
    } else if (!loads_.empty()) {
      const auto load = loads_.begin() + draw_(int64_t(loads_.size()));
      const Uid uid = *load;
      loads_.erase(load);
      coverage_.failures += fails;
      sut_.load_done(uid, !fails, now_);
      model_.load_done(uid, !fails, now_);
    }
    take_starts();
  }

  void take_starts() {
    for (const LoadStart& load : sut_.starts().loads) loads_.push_back(load.uid);
    for (const CopyStart& copy : sut_.starts().copies) {
      RC_ASSERT(copying_ == kBaseUid);  // one at a time
      copying_ = copy.uid;
    }
    sut_.starts().clear();
    RC_ASSERT(int32_t(loads_.size()) <= config_.residency.num_load_workers);
  }

  void advance_step() {
    if (step_ == nullptr) {
      if (!samples_ && draw_.one_in(2)) jump();
      plan();
    } else if (sut_.step_can_start()) {
      check_launch();
      commit();
    }
  }

  void plan() {
    const StepPlan& plan = sut_.plan(now_);
    step_ = plan.empty() ? nullptr : &plan;
    const auto& expected = model_.plan(now_);
    std::vector<NaiveScheduler::Row> rows;
    std::map<AdapterRef, uint32_t> adapters;
    uint32_t num_tokens = 0, num_decode_rows = 0;
    for (const StepRow& row : plan.rows) {
      rows.push_back({sut_.request(row.request).id, row.num_computed, row.num_tokens, row.is_decode,
                      row.samples});
      num_tokens += row.num_tokens;
      num_decode_rows += row.is_decode;
      if (row.adapter != kBaseRef) adapters[row.adapter] += row.num_tokens;
    }
    RC_ASSERT(rows == expected);
    RC_ASSERT(plan.num_tokens == num_tokens);
    RC_ASSERT(plan.num_decode_rows == num_decode_rows);
    RC_ASSERT(plan.adapters.size() == adapters.size());
    for (const StepAdapter& a : plan.adapters) RC_ASSERT(adapters[a.adapter] == a.num_tokens);
    // [5.23]: else requests would wait for nothing.
    RC_ASSERT(!plan.empty() || sut_.waiting().empty() || sut_.residency().transfer_in_flight());
    // P57.
    RC_ASSERT(num_tokens <= config_.max_num_batched_tokens);
    RC_ASSERT(rows.size() <= size_t{config_.max_num_seqs});
    RC_ASSERT(int32_t(adapters.size()) <= config_.residency.max_loras);
    std::vector<Uid> waits_for;
    for (const AdapterRef a : plan.wait_for) waits_for.push_back(sut_.residency().uid(a));
    RC_ASSERT(std::set(waits_for.begin(), waits_for.end()) ==
              std::set<Uid>(model_.waits_for.begin(), model_.waits_for.end()));
  }

  // P32: at launch every adapter of the step has its slot, which nobody was given since the plan,
  // or its row failed.
  void check_launch() {
    for (const StepRow& row : step_->rows) {
      const Uid uid = row.adapter == kBaseRef ? kBaseUid : sut_.residency().uid(row.adapter);
      if (uid == kBaseUid || NaiveResidency::has(model_.failed_in_step, uid)) continue;
      RC_ASSERT(sut_.residency().ready(row.adapter));
      RC_ASSERT(row.slot == sut_.residency().slot(row.adapter));
      RC_ASSERT(row.generation == sut_.residency().slot_generation(row.slot));
    }
  }

  void commit() {
    std::vector<int32_t> tokens;
    for (const StepRow& row : step_->rows) {
      if (samples_ && row.samples) tokens.push_back(int32_t(draw_(2)));
    }
    step_ = nullptr;
    sut_.commit({tokens}, now_);
    model_.commit(tokens, now_);
  }

  // Some steps in closed form: the model makes every one of them.
  void jump() {
    const Stretch stretch = sut_.stretch();
    if (stretch.num_steps == 0) return;
    const int64_t most = draw_.between(1, stretch.num_steps);
    const int64_t step_ns = draw_.between(1, 10);
    int64_t num_steps = 0;
    for (; num_steps < most && now_ < stretch.deadline_ns; ++num_steps) {
      model_.plan(now_);
      now_ += step_ns;
      model_.commit({}, now_);
    }
    if (num_steps == 0) return;
    ++coverage_.stretches;
    sut_.advance(num_steps);
    check();
  }

  std::string random_name() { return fmt::format("a{}", draw_(num_adapters_)); }

  // --- comparison ---------------------------------------------------------------------------
  void check() {
    take_starts();
    RC_ASSERT(log_.all == model_.decisions);
    count();
    log_.all.clear();
    model_.decisions.clear();
    if (has_many_adapters() && ++num_checks_ % 16 != 0) return;
    check_requests();
    check_tiers();
    check_blocks();
  }

  void count() {
    for (const Decision& d : log_.all) {
      const auto* admission = d.get_if<decision::Admission>();
      const auto* finish = d.get_if<decision::Finish>();
      coverage_.preemptions += d.is<decision::Preemption>();
      coverage_.drains += d.is<decision::Drain>();
      coverage_.reservations += d.is<decision::Reservation>();
      coverage_.evictions += d.is<decision::Eviction>();
      coverage_.hits += admission != nullptr && admission->num_cached_tokens > 0;
      coverage_.errors += finish != nullptr && finish->reason == FinishReason::error;
    }
  }

  std::vector<uint64_t> ids(const std::vector<RequestRef>& refs) const {
    std::vector<uint64_t> out;
    for (const RequestRef ref : refs) out.push_back(sut_.request(ref).id);
    return out;
  }

  // The queues of the adapters, merged.
  std::vector<uint64_t> waiting_ids() const {
    const auto wait_key = [&](RequestRef ref) { return sut_.request(ref).wait_key; };
    std::vector<RequestRef> refs;
    for (const bool reserving : {false, true}) {
      for (const auto& [place, head] : sut_.waiting().heads(reserving)) {
        const AdapterRef adapter = sut_.request(head).adapter;
        RC_ASSERT(sut_.waiting().reserves(adapter) == reserving);
        const std::vector<RequestRef> queue = sut_.waiting().of_adapter(adapter);
        RC_ASSERT(std::ranges::is_sorted(queue, {}, wait_key));
        refs.insert(refs.end(), queue.begin(), queue.end());
      }
    }
    std::ranges::sort(refs, {}, wait_key);
    return ids(refs);
  }

  void check_requests() {
    RC_ASSERT(ids(sut_.running()) == model_.running);
    RC_ASSERT(waiting_ids() == model_.waiting());
    RC_ASSERT(sut_.num_live() == int64_t(model_.requests.size()));
    for (const auto& [id, expected] : model_.requests) {
      const RequestRef ref = sut_.find_request(id);
      RC_ASSERT(ref != kNoRequest);
      const Request& r = sut_.request(ref);
      RC_ASSERT(r.num_computed == expected.computed);
      RC_ASSERT(r.num_generated == expected.generated);
      RC_ASSERT(r.end_at_commit == expected.ends_at_commit);
      if (expected.running) continue;
      RC_ASSERT(r.reservation == expected.reservation);
      const bool counts = config_.n_starve != kNever || config_.t_starve_ns != kNever;
      if (expected.reservation >= 0 || !counts) continue;
      if (config_.n_starve != kNever) RC_ASSERT(r.num_rejections == expected.rejections);
      RC_ASSERT(r.first_rejection_ns == expected.first_rejection_ns);
    }
  }

  void check_tiers() {
    const Residency& tiers = sut_.residency();
    RC_ASSERT(num_registered(tiers) == int32_t(model_.tiers.adapters.size()));
    for (const auto& [uid, expected] : model_.tiers.adapters) {
      const AdapterRef a = tiers.find_uid(uid);
      RC_ASSERT(a != kBaseRef);
      RC_ASSERT(tiers.state(a) == model_.tiers.state(uid));
      RC_ASSERT(tiers.slot(a) == model_.tiers.slot_of(uid));
      RC_ASSERT(tiers.promised(a) == NaiveResidency::has(model_.tiers.promised, uid));
      RC_ASSERT(tiers.pinned(a) == NaiveResidency::has(model_.tiers.pinned, uid));
      RC_ASSERT(tiers.num_running(a) == expected.running);
      RC_ASSERT(tiers.retiring(a) == expected.retiring);
    }
    RC_ASSERT(tiers.num_claimants() == model_.tiers.num_claimants());
    RC_ASSERT(tiers.num_claimants() <= config_.residency.max_loras);
    RC_ASSERT(num_on_cpu(tiers) == model_.tiers.num_on_cpu());
    RC_ASSERT(num_on_cpu(tiers) <= config_.residency.max_cpu_loras);
  }

  // A jump hands out the same blocks in another order. So blocks are paired by where they are (in
  // a request's table, in the queue of cached ones), one to one, and pairs must agree in references
  // and in what they can be found as. Keys and contents are one to one over the whole run: no
  // request ever matches what another namespace or another prefix has computed (P45, P46).
  void check_blocks() {
    const BlockPool& pool = sut_.blocks();
    std::map<BlockId, uint32_t> pairs;
    const auto pair_up = [&](std::span<const BlockId> ours, std::span<const uint32_t> theirs) {
      RC_ASSERT(ours.size() == theirs.size());
      for (size_t i = 0; i < ours.size(); ++i) {
        RC_ASSERT(pairs.try_emplace(ours[i], theirs[i]).first->second == theirs[i]);
      }
    };
    for (const auto& [id, r] : model_.requests) {
      pair_up(sut_.request(sut_.find_request(id)).blocks, r.table);
    }
    RC_ASSERT(pairs.size() == size_t{pool.num_referenced()});  // P48: none of them is free
    RC_ASSERT(pool.num_allocatable() == model_.pool.num_allocatable());
    const std::vector<BlockId> free = handed_out(pool);
    pair_up(std::span(free).subspan(model_.pool.num_plain_free()), model_.pool.queue);
    std::set<uint32_t> distinct;
    for (const auto& [block, page] : pairs) {
      RC_ASSERT(distinct.insert(page).second);
      RC_ASSERT(pool.ref_count(block) == uint32_t(model_.pool.pages[page].refs));
    }
    check_keys(pairs);
  }

  void check_keys(const std::map<BlockId, uint32_t>& pairs) {
    for (const auto& [id, r] : model_.requests) {
      for (const BlockKey key : sut_.request(sut_.find_request(id)).keys) {
        const BlockId block = key == kNoKey ? kNullBlock : sut_.blocks().find(key);
        if (block == kNullBlock) continue;
        RC_ASSERT(pairs.contains(block));
        const std::string& text = model_.pool.pages[pairs.at(block)].key;
        RC_ASSERT(!text.empty());
        RC_ASSERT(text_of_key_.try_emplace(key, text).first->second == text);
        RC_ASSERT(key_of_text_.try_emplace(text, key).first->second == key);
      }
    }
  }

  Draw draw_;
  SchedulerConfig config_;
  bool samples_;  // the executor brings tokens
  int64_t num_adapters_;
  DecisionList log_;
  Scheduler sut_;
  NaiveScheduler model_;
  const StepPlan* step_ = nullptr;  // in flight; copy_done fills in its slots
  std::vector<Uid> loads_;
  Uid copying_ = kBaseUid;
  std::set<Uid> seen_uids_;
  std::map<BlockKey, std::string> text_of_key_;
  std::map<std::string, BlockKey> key_of_text_;
  Coverage coverage_;
  int64_t now_ = 0;
  uint64_t next_id_ = 0;
  int64_t num_checks_ = 0;
};

RC_GTEST_PROP(Scheduler, EqualsTheNaiveWalk, ()) {
  const SeededCase c = any_seeded_case(400);
  Pair pair(c.seed);
  for (int i = 0; i < c.num_ops; ++i) pair.operate();
  pair.run_to_the_end();
  pair.unload_everything();
  const Coverage& seen = pair.coverage();
  RC_CLASSIFY(pair.config().load_mode == LoadMode::blocking, "blocking");
  RC_CLASSIFY(pair.config().residency.max_loras == 1, "one slot");
  RC_CLASSIFY(seen.preemptions > 0, "preempts");
  RC_CLASSIFY(seen.reservations > 0, "reserves");
  RC_CLASSIFY(seen.drains > 0, "drains");
  RC_CLASSIFY(seen.evictions > 0, "evicts adapters");
  RC_CLASSIFY(seen.failures > 0, "loads fail");
  RC_CLASSIFY(seen.errors > 0, "requests fail");
  RC_CLASSIFY(seen.hits > 0, "prefix hits");
  RC_CLASSIFY(seen.stretches > 0, "steps in closed form");
  RC_CLASSIFY(seen.unloads > 0, "unloads");
  RC_CLASSIFY(pair.has_many_adapters(), "hundreds of adapters wait");
}

}  // namespace
}  // namespace loratory::sim
