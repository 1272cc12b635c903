// Schedulers, caches and registries that are wrong in one way each.
#include <algorithm>
#include <functional>
#include <utility>

#include "fuzz/bug_zoo/naive_scheduler.hpp"

namespace loratory::zoo {
namespace {

using check::Event;
using check::FinishReason;
using check::kBaseUid;
using check::kNoSlot;
namespace message = check::message;

// --- whose KV ------------------------------------------------------------------------------------

struct PrefixWithoutUid : NaiveScheduler {
  static constexpr Note kNote{"prefix_without_uid", "KV is found by tokens alone",
                              "vllm-project/vllm#3264"};
  uint64_t namespace_of(const Request&) const override { return 0; }
};

struct PrefixByName : NaiveScheduler {
  static constexpr Note kNote{"prefix_by_name",
                              "a name that is used again finds the KV of the retired uid",
                              "vllm-project/vllm#42125"};
  uint64_t namespace_of(const Request& r) const override {
    return std::hash<std::string>{}(r.name);
  }
};

struct PrefixBySlot : NaiveScheduler {
  static constexpr Note kNote{"prefix_by_slot", "KV is found by tokens and slot",
                              "vllm-project/vllm#30931"};
  uint64_t namespace_of(const Request& r) const override {
    return r.uid == kBaseUid ? 0 : uint64_t(adapters_.at(r.uid).slot + 1);
  }
};

struct LastTokenRuleDropped : NaiveScheduler {
  static constexpr Note kNote{"last_token_rule_dropped",
                              "a prompt that is all there leaves nothing to compute",
                              "vllm-project/vllm#11186"};
  uint32_t hit_limit(const Request& r) const override { return uint32_t(r.tokens.size()); }
};

struct PublishedBeforeComputed : NaiveScheduler {
  static constexpr Note kNote{"published_before_computed",
                              "blocks are to be found when they are planned",
                              "vllm-project/vllm#43569"};
  bool admit(Request& r) override {
    if (!NaiveScheduler::admit(r)) return false;
    Request whole = r;
    whole.num_computed = uint32_t(r.blocks.size()) * limits_.block_size;
    whole.num_computed = std::min(whole.num_computed, uint32_t(r.tokens.size()));
    publish(whole);
    return true;
  }
};

struct SampledTokenPublished : NaiveScheduler {
  static constexpr Note kNote{"sampled_token_published",
                              "the last sampled token counts as computed",
                              "lightseekorg/tokenspeed#83"};
  uint32_t num_to_publish(const Request& r) const override {
    const auto room = uint32_t(r.blocks.size()) * limits_.block_size;
    return std::min(uint32_t(r.tokens.size()), room);
  }
};

struct OptOutLeavesBlocks : NaiveScheduler {
  static constexpr Note kNote{"opt_out_leaves_blocks",
                              "a request that opted out leaves its KV to others",
                              "lightseekorg/tokenspeed#268"};
  bool leaves_blocks(const Request&) const override { return true; }
};

struct OptOutTakesBlocks : NaiveScheduler {
  static constexpr Note kNote{"opt_out_takes_blocks",
                              "a request that opted out takes the KV of others",
                              "lightseekorg/tokenspeed#268"};
  std::vector<uint32_t> match(const Request& r) const override {
    Request other = r;
    other.prefix_cache = true;
    return NaiveScheduler::match(other);
  }
};

struct TakenBlockStaysPublished : NaiveScheduler {
  static constexpr Note kNote{"taken_block_stays_published",
                              "a block that is used anew is still found under its old key",
                              "Wenyueh/MinivLLM#87"};
  std::optional<uint32_t> take_block() override {
    if (free_.empty()) return std::nullopt;
    const uint32_t block = free_.front();
    free_.pop_front();
    num_users_[block] = 1;
    return block;
  }
};

// The key of a block is its own tokens, whatever came before them.
struct KeyWithoutParent : NaiveScheduler {
  static constexpr Note kNote{"key_without_parent",
                              "a block is found by its own tokens, whatever came before",
                              "sgl-project/sglang#24638"};
  uint64_t namespace_of(const Request& r) const override { return r.uid; }
  std::vector<uint32_t> match(const Request& r) const override {
    std::vector<uint32_t> found = NaiveScheduler::match(r);
    const uint32_t size = limits_.block_size;
    while (r.prefix_cache && (found.size() + 1) * size < r.tokens.size()) {
      const auto begin = r.tokens.begin() + int64_t(found.size()) * size;
      const auto same = std::ranges::find_if(published_, [&](const auto& entry) {
        const auto& [space, tokens] = entry.first;
        return space == r.uid && tokens.size() >= size &&
               std::equal(tokens.end() - size, tokens.end(), begin) &&
               std::ranges::count(found, entry.second) == 0;
      });
      if (same == published_.end()) break;
      found.push_back(same->second);
    }
    return found;
  }
};

struct HitOfSubmission : NaiveScheduler {
  static constexpr Note kNote{"hit_of_submission",
                              "what was found at submission is used at admission",
                              "vllm-project/vllm#17305"};
  void answer(const message::Submit& m) override {
    NaiveScheduler::answer(m);
    if (reply_.status == check::Status::ok) hits_[m.id] = NaiveScheduler::match(*find(m.id));
  }
  using NaiveScheduler::answer;
  std::vector<uint32_t> match(const Request& r) const override { return hits_.at(r.id); }
  std::map<uint64_t, std::vector<uint32_t>> hits_;
};

// --- blocks --------------------------------------------------------------------------------------

struct BlocksLeakedByAbort : NaiveScheduler {
  static constexpr Note kNote{"blocks_leaked_by_abort",
                              "an abort of a running request forgets its blocks",
                              "vllm-project/vllm-ascend#16662"};
  void end(Request& r, FinishReason reason) override {
    if (reason == FinishReason::abort && r.running) r.blocks.clear();
    NaiveScheduler::end(r, reason);
  }
};

struct BlocksLeakedByPreemption : NaiveScheduler {
  static constexpr Note kNote{"blocks_leaked_by_preemption",
                              "preemption forgets the block that was being filled",
                              "neuralmagic/vllm#92"};
  void preempt(Request& r) override {
    if (r.blocks.size() > 1) r.blocks.pop_back();  // the block that was being filled
    NaiveScheduler::preempt(r);
  }
};

struct FreedTwiceAfterPreemption : NaiveScheduler {
  static constexpr Note kNote{"freed_twice_after_preemption",
                              "abort frees what preemption freed before", "LMCache/LMCache#5248"};
  void preempt(Request& r) override {
    const std::vector<uint32_t> blocks = r.blocks;
    NaiveScheduler::preempt(r);
    stale_[r.serial] = blocks;
  }
  void end(Request& r, FinishReason reason) override {
    const auto stale = stale_.find(r.serial);
    if (reason == FinishReason::abort && stale != stale_.end()) {
      for (const uint32_t block : stale->second) free_.push_front(block);
    }
    NaiveScheduler::end(r, reason);
  }
  void begin(const message::Hello& m) override {
    NaiveScheduler::begin(m);
    stale_.clear();
  }
  std::map<uint64_t, std::vector<uint32_t>> stale_;
};

struct SharedBlocksFreed : NaiveScheduler {
  static constexpr Note kNote{"shared_blocks_freed", "the first of two who share a block frees it",
                              "Avarok-Cybersecurity/atlas#373"};
  void release(const std::vector<uint32_t>& blocks) override {
    for (const uint32_t block : blocks) {
      if (num_users_[block] > 0) free_.push_back(block);
      num_users_[block] = 0;
    }
  }
};

struct RejectedAdmissionKeepsBlocks : NaiveScheduler {
  static constexpr Note kNote{"rejected_admission_keeps_blocks",
                              "an admission that fails keeps the blocks that it found",
                              "jundot/omlx#1450"};
  void undo(const std::vector<uint32_t>&) override {}
};

struct PreemptedKeepsItsPlace : NaiveScheduler {
  static constexpr Note kNote{"preempted_keeps_its_place",
                              "a preempted request goes on where it was, without its KV",
                              "inference-sim/inference-sim#1057"};
  void preempt(Request& r) override {
    const uint32_t computed = r.num_computed;
    NaiveScheduler::preempt(r);
    if (computed > 0) places_[r.serial] = computed;
  }
  bool admit(Request& r) override {
    if (!NaiveScheduler::admit(r)) return false;
    const auto place = places_.find(r.serial);
    if (place == places_.end() || place->second >= r.tokens.size()) return true;
    check::Row& row = reply_.rows.back();
    if (row.start + row.num_tokens <= place->second) return true;
    row.num_tokens -= place->second > row.start ? place->second - row.start : 0;
    row.start = std::max(row.start, place->second);
    places_.erase(place);
    return true;
  }
  std::map<uint64_t, uint32_t> places_;
};

// --- slots and tiers -----------------------------------------------------------------------------

struct ReaderInFlightForgotten : NaiveScheduler {
  static constexpr Note kNote{"reader_in_flight_forgotten",
                              "a slot is used again before its reader ended",
                              "vllm-project/vllm#47725"};
  bool holds_slot(const Adapter& a) const override {
    return std::ranges::any_of(requests_, [&](const auto& entry) {
      const Request& r = entry.second;
      return r.uid == a.uid && r.running && !r.in_flight;
    });
  }
};

struct PrefetchEvictsRunning : NaiveScheduler {
  static constexpr Note kNote{"prefetch_evicts_running",
                              "what is wanted next takes the slot of what runs",
                              "sgl-project/sglang#8712"};
  bool may_leave_slot(const Adapter& a) const override {
    return !a.copying && !a.pinned && !in_flight(a.uid);
  }
  std::vector<Uid> wanted() const override {
    std::vector<Uid> uids;
    for (const Request* r : const_cast<PrefetchEvictsRunning*>(this)->in_order(false)) {
      const bool is_new = r->uid != kBaseUid && std::ranges::count(uids, r->uid) == 0;
      if (is_new && int32_t(uids.size()) < limits_.max_loras) uids.push_back(r->uid);
    }
    return uids;
  }
};

struct PrefetchEvictsReady : NaiveScheduler {
  static constexpr Note kNote{"prefetch_evicts_ready",
                              "what waits takes the slot of what is ready and has not run yet",
                              "sgl-project/sglang#8712"};
  void answer(const message::Plan& m) override {
    for (const Request* r : in_order(false)) {
      if (r->uid != kBaseUid) bring(adapters_.at(r->uid));
    }
    NaiveScheduler::answer(m);
  }
  using NaiveScheduler::answer;
  void bring(Adapter& a) {
    if (a.on_cpu && a.slot == kNoSlot) start_copy(a, {});
    if (!a.on_cpu && !a.loading) start_load(a, {});
  }
};

struct CopyNotAwaited : NaiveScheduler {
  static constexpr Note kNote{"copy_not_awaited", "rows read a slot while it is being copied to",
                              "sgl-project/sglang#39143"};
  bool is_ready(const Request& r) const override {
    return r.uid == kBaseUid || adapters_.at(r.uid).slot != kNoSlot;
  }
};

struct RunsBeforeItIsLoaded : NaiveScheduler {
  static constexpr Note kNote{"runs_from_host_memory",
                              "an adapter in host memory counts as one on the GPU",
                              "AI-Hypercomputer/JetStream#221"};
  bool is_ready(const Request& r) const override {
    return r.uid == kBaseUid || adapters_.at(r.uid).on_cpu;
  }
};

struct SlotOfCopyGivenAway : NaiveScheduler {
  static constexpr Note kNote{"slot_of_copy_given_away",
                              "a slot that is being copied to is given away",
                              "vllm-project/vllm#32881"};
  bool may_leave_slot(const Adapter& a) const override { return !a.pinned && !holds_slot(a); }
};

struct PinnedEvicted : NaiveScheduler {
  static constexpr Note kNote{"pinned_evicted", "pins are forgotten when a slot is needed",
                              "sgl-project/sglang#8053"};
  bool may_leave_slot(const Adapter& a) const override { return !a.copying && !holds_slot(a); }
  std::vector<Uid> wanted() const override {
    auto* self = const_cast<PinnedEvicted*>(this);
    std::map<Uid, bool> pinned;
    for (auto& [uid, a] : self->adapters_) pinned[uid] = std::exchange(a.pinned, false);
    const std::vector<Uid> uids = NaiveScheduler::wanted();
    for (auto& [uid, a] : self->adapters_) a.pinned = pinned[uid];
    return uids;
  }
};

struct CpuPlacesOneTooMany : NaiveScheduler {
  static constexpr Note kNote{"cpu_places_one_too_many",
                              "loads that run do not count in host memory",
                              "sgl-project/sglang#11526"};
  bool has_cpu_place() const override {
    const auto is_there = [](const auto& entry) { return entry.second.on_cpu; };
    return std::ranges::count_if(adapters_, is_there) <= limits_.max_cpu_loras;
  }
};

struct GenerationForgotten : NaiveScheduler {
  static constexpr Note kNote{"generation_forgotten",
                              "another adapter in the slot, and the same generation",
                              "vllm-project/vllm#47724"};
  uint64_t next_generation(const Slot& slot) const override {
    return std::max<uint64_t>(slot.generation, 1);
  }
};

// The order of what is alike depends on where it lies in memory, here: on which session it is.
struct EvictsByPointer : NaiveScheduler {
  static constexpr Note kNote{"evicts_by_pointer", "who is evicted depends on addresses",
                              "sgl-project/sglang#31084"};
  bool goes_before(const Adapter& a, const Adapter& b) const override {
    return session_ % 2 == 0 ? a.uid < b.uid : a.uid > b.uid;
  }
  void begin(const message::Hello& m) override {
    ++session_;
    NaiveScheduler::begin(m);
  }
  int session_ = 0;
};

struct RanksDisagreeOnOrder : NaiveScheduler {
  static constexpr Note kNote{"ranks_disagree_on_order",
                              "requests that came together have no order of their own",
                              "vllm-project/vllm#7253"};
  bool comes_before(const Request& a, const Request& b) const override {
    if (a.priority != b.priority) return a.priority < b.priority;
    const bool is_alike = a.serial / 2 == b.serial / 2;  // arrived together
    return is_alike && session_ % 2 == 0 ? a.serial > b.serial : a.serial < b.serial;
  }
  void begin(const message::Hello& m) override {
    ++session_;
    NaiveScheduler::begin(m);
  }
  int session_ = 0;
};

// --- names ---------------------------------------------------------------------------------------

struct UnknownIsBase : NaiveScheduler {
  static constexpr Note kNote{"unknown_is_base",
                              "a name that nobody has is served by the base model",
                              "huggingface/text-generation-inference#2505"};
  void answer(const message::Submit& m) override {
    message::Submit other = m;
    if (uid_of(m.adapter) == kBaseUid) other.adapter.clear();
    NaiveScheduler::answer(other);
  }
  using NaiveScheduler::answer;
};

struct NameResolvedLate : NaiveScheduler {
  static constexpr Note kNote{"name_resolved_late",
                              "a request takes the adapter that has the name when it is admitted",
                              "vllm-project/vllm#42125"};
  bool admit(Request& r) override {
    const Uid now = NaiveScheduler::uid_of(r.name);
    if (now == kBaseUid || now == r.uid) return NaiveScheduler::admit(r);
    --adapters_.at(r.uid).num_live;
    r.uid = now;
    ++adapters_.at(now).num_live;
    return !is_ready(r) || NaiveScheduler::admit(r);
  }
};

struct UidUsedAgain : NaiveScheduler {
  static constexpr Note kNote{"uid_used_again", "the uid of an unloaded adapter is given out again",
                              "vllm-project/vllm#30931"};
  Uid next_uid() override {
    for (const auto& [uid, a] : adapters_) {
      if (a.unloaded) return uid;
    }
    return NaiveScheduler::next_uid();
  }
};

struct UnloadsAtOnce : NaiveScheduler {
  static constexpr Note kNote{"unloads_at_once", "unload does not wait for the adapter's requests",
                              "sgl-project/sglang#9084"};
  bool may_unload(const Adapter& a) const override { return !in_flight(a.uid); }
  bool is_ready(const Request& r) const override {
    return r.uid != kBaseUid && adapters_.at(r.uid).unloaded ? false : NaiveScheduler::is_ready(r);
  }
  std::vector<Uid> wanted() const override {
    std::vector<Uid> uids = NaiveScheduler::wanted();
    std::erase_if(uids, [&](Uid uid) { return adapters_.at(uid).unloaded; });
    return uids;
  }
};

struct WaitingCountLeaked : NaiveScheduler {
  static constexpr Note kNote{"waiting_count_leaked",
                              "an abort in the queue leaves its adapter in use for ever",
                              "sgl-project/sglang#21380"};
  void end(Request& r, FinishReason reason) override {
    const bool leaks = reason == FinishReason::abort && !r.running && r.uid != kBaseUid;
    if (leaks) ++adapters_.at(r.uid).num_live;
    NaiveScheduler::end(r, reason);
  }
};

// --- failures and ends ---------------------------------------------------------------------------

struct FailedLoadForgotten : NaiveScheduler {
  static constexpr Note kNote{"failed_load_forgotten", "nobody hears of a load that failed",
                              "vllm-project/aibrix#235"};
  void give_up(Adapter& a) override { a.loading = true; }
};

struct FailedLoadEndsAll : NaiveScheduler {
  static constexpr Note kNote{"failed_load_ends_all",
                              "one adapter that cannot be loaded ends the requests of all",
                              "vllm-project/vllm#4879"};
  void give_up(Adapter& a) override {
    NaiveScheduler::give_up(a);
    std::vector<uint64_t> ids;
    for (const auto& [id, r] : requests_) {
      if (!r.in_flight) ids.push_back(id);
    }
    for (const uint64_t id : ids) end(requests_.at(id), FinishReason::error);
  }
};

struct AbortInFlightForgotten : NaiveScheduler {
  static constexpr Note kNote{"abort_in_flight_forgotten", "an abort during a step is lost",
                              "vllm-project/vllm#26400"};
  void answer(const message::Abort& m) override {
    const Request* const r = find(m.id);
    if (r == nullptr || !r->in_flight) NaiveScheduler::answer(m);
  }
  using NaiveScheduler::answer;
};

struct ReservationOutlivesAbort : NaiveScheduler {
  static constexpr Note kNote{"reservation_outlives_abort",
                              "a place is kept for a request that was aborted",
                              "sgl-project/sglang#16369"};
  void answer(const message::Plan& m) override {
    for (const Request* r : in_order(false)) {
      if (!reserved_ && !is_ready(*r)) reserved_ = r->serial;
    }
    NaiveScheduler::answer(m);
  }
  using NaiveScheduler::answer;
  bool admit(Request& r) override {
    if (reserved_ && *reserved_ != r.serial && r.uid != kBaseUid) return false;
    if (reserved_ == r.serial) reserved_.reset();
    return NaiveScheduler::admit(r);
  }
  void begin(const message::Hello& m) override {
    NaiveScheduler::begin(m);
    reserved_.reset();
  }
  std::optional<uint64_t> reserved_;
};

struct NobodyIsABarrier : NaiveScheduler {
  static constexpr Note kNote{"starvation", "requests pass one whose adapter has no slot, for ever",
                              "vllm-project/vllm#16876"};
  bool is_barrier(const Request&) const override { return false; }
};

// Strictly in order but for that: nobody would be passed.
struct PreemptedToTheBack : NaiveScheduler {
  static constexpr Note kNote{"preempted_to_the_back",
                              "who is preempted waits behind all who came later",
                              "vllm-project/vllm#41952"};
  void begin(const message::Hello& m) override {
    NaiveScheduler::begin(m);
    reply_.claims.max_overtakes = 0;
  }
  bool is_barrier(const Request&) const override { return true; }
  void preempt(Request& r) override {
    NaiveScheduler::preempt(r);
    r.serial = next_serial_++;
  }
};

struct RowsOneTooMany : NaiveScheduler {
  static constexpr Note kNote{"rows_one_too_many", "one row more than max_num_seqs",
                              "sgl-project/sglang#25078"};
  uint32_t row_limit() const override { return limits_.max_num_seqs + 1; }
};

struct BudgetForgotten : NaiveScheduler {
  static constexpr Note kNote{"budget_forgotten", "a prompt is not cut to the tokens that are left",
                              "sgl-project/sglang#23141"};
  uint32_t num_tokens_now(const Request& r) const override {
    return uint32_t(r.tokens.size()) - r.num_computed;
  }
};

struct ChunkSamples : NaiveScheduler {
  static constexpr Note kNote{"chunk_samples", "a chunk in the middle of a prompt samples a token",
                              "vllm-project/vllm#9057"};
  bool samples(const Request&, uint32_t) const override { return true; }
};

template <typename Scheduler>
ZooScheduler wrong() {
  return {Scheduler::kNote, [] { return std::make_unique<Scheduler>(); }};
}

template <typename Scheduler>
ZooScheduler inhabitant(std::string_view name, std::string_view what, std::string_view source) {
  return {{name, what, source}, [] { return std::make_unique<Scheduler>(); }};
}

}  // namespace

const std::vector<ZooScheduler>& wrong_schedulers() {
  static const std::vector<ZooScheduler> kZoo = {
      wrong<PrefixWithoutUid>(),
      wrong<PrefixByName>(),
      wrong<PrefixBySlot>(),
      wrong<LastTokenRuleDropped>(),
      wrong<PublishedBeforeComputed>(),
      wrong<SampledTokenPublished>(),
      wrong<OptOutLeavesBlocks>(),
      wrong<OptOutTakesBlocks>(),
      wrong<TakenBlockStaysPublished>(),
      wrong<KeyWithoutParent>(),
      wrong<HitOfSubmission>(),
      wrong<BlocksLeakedByAbort>(),
      wrong<BlocksLeakedByPreemption>(),
      wrong<FreedTwiceAfterPreemption>(),
      wrong<SharedBlocksFreed>(),
      wrong<RejectedAdmissionKeepsBlocks>(),
      wrong<PreemptedKeepsItsPlace>(),
      wrong<ReaderInFlightForgotten>(),
      wrong<PrefetchEvictsRunning>(),
      wrong<PrefetchEvictsReady>(),
      wrong<CopyNotAwaited>(),
      wrong<RunsBeforeItIsLoaded>(),
      wrong<SlotOfCopyGivenAway>(),
      wrong<PinnedEvicted>(),
      wrong<CpuPlacesOneTooMany>(),
      wrong<GenerationForgotten>(),
      wrong<EvictsByPointer>(),
      wrong<RanksDisagreeOnOrder>(),
      wrong<UnknownIsBase>(),
      wrong<NameResolvedLate>(),
      wrong<UidUsedAgain>(),
      wrong<UnloadsAtOnce>(),
      wrong<WaitingCountLeaked>(),
      wrong<FailedLoadForgotten>(),
      wrong<FailedLoadEndsAll>(),
      wrong<AbortInFlightForgotten>(),
      wrong<ReservationOutlivesAbort>(),
      wrong<NobodyIsABarrier>(),
      wrong<PreemptedToTheBack>(),
      wrong<RowsOneTooMany>(),
      wrong<BudgetForgotten>(),
      wrong<ChunkSamples>(),
  };
  return kZoo;
}

namespace {

struct LatestFirst : NaiveScheduler {
  bool goes_before(const Adapter& a, const Adapter& b) const override { return b.uid < a.uid; }
};

// Strictly in order: the first that cannot run stops the rest, and nobody is ever passed.
struct HeadOfLine : NaiveScheduler {
  void begin(const message::Hello& m) override {
    NaiveScheduler::begin(m);
    reply_.claims.max_overtakes = 0;
  }
  bool is_barrier(const Request&) const override { return true; }
};

struct NeverHits : NaiveScheduler {
  std::vector<uint32_t> match(const Request&) const override { return {}; }
};

struct SmallChunks : NaiveScheduler {
  uint32_t num_tokens_now(const Request& r) const override {
    return std::min<uint32_t>(NaiveScheduler::num_tokens_now(r), 3);
  }
};

struct FewRows : NaiveScheduler {
  uint32_t row_limit() const override { return 1; }
};

}  // namespace

const std::vector<ZooScheduler>& right_schedulers() {
  static const std::vector<ZooScheduler> kZoo = {
      inhabitant<NaiveScheduler>("naive", "as it stands", ""),
      inhabitant<LatestFirst>("latest_adapter_first", "evicts the youngest adapter", ""),
      inhabitant<HeadOfLine>("head_of_line", "strictly in order", ""),
      inhabitant<NeverHits>("never_hits", "computes everything", ""),
      inhabitant<SmallChunks>("small_chunks", "three tokens a row", ""),
      inhabitant<FewRows>("one_row", "one request at a time", ""),
  };
  return kZoo;
}

}  // namespace loratory::zoo
