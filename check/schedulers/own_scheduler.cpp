#include "check/schedulers/own_scheduler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "scheduler_sim/scheduler/scheduler.hpp"

namespace loratory::check {
namespace {

sim::SchedulerConfig config_of(const Limits& limits, const OwnOptions& options) {
  sim::SchedulerConfig c;
  c.residency.max_loras = limits.max_loras;
  c.residency.max_cpu_loras = limits.max_cpu_loras;
  c.residency.num_load_workers = limits.num_load_workers;
  c.block_size = limits.block_size;
  c.num_blocks = limits.num_blocks;
  c.max_num_batched_tokens = limits.max_num_batched_tokens;
  c.max_num_seqs = limits.max_num_seqs;
  c.max_model_len = limits.max_model_len;
  c.load_mode = options.blocking ? sim::LoadMode::blocking : sim::LoadMode::overlap;
  c.admission_order = options.packed ? sim::AdmissionOrder::packed : sim::AdmissionOrder::arrival;
  c.chunked_prefill = options.chunked_prefill;
  if (!options.chunked_prefill) {
    c.max_num_batched_tokens = std::max(c.max_num_batched_tokens, c.max_model_len);
  }
  c.prefix_cache = options.prefix_cache;
  c.n_starve = options.n_starve;
  c.t_starve_ns = sim::kNever;
  return c;
}

// [7.10]: the walks that turn a request away until it reserves, and the steps from there on. Every
// request is at most max_model_len long and may generate all of it.
int64_t overtakes(const Limits& limits, const sim::SchedulerConfig& config) {
  const int64_t length = limits.max_model_len;
  const auto drain = int64_t(std::floor(config.drain_factor * double(length)));
  const int64_t reserved = limits.max_adapters * (drain + length + 2 + 1);  // 1: a step ahead
  return config.n_starve + reserved + (limits.max_requests + 1) * 2 * length;
}

class OwnScheduler final : public SchedulerUnderTest, private sim::DecisionSink {
 public:
  explicit OwnScheduler(const OwnOptions& options) : options_(options) {}

  Reply exchange(const Message& m) override {
    reply_ = {};
    if (m.get_if<message::Hello>() == nullptr) require_session_at(m.time_ns);
    now_ns_ = m.time_ns;
    std::visit([&](const auto& what) { answer(what); }, m.what);
    if (scheduler_) add_transfers();
    return std::move(reply_);
  }

 private:
  struct Step {
    int64_t number = 0;
    std::vector<uint64_t> samples;  // requests whose rows do, in the order of the rows
  };

  void require_session_at(int64_t time_ns) const {
    if (!scheduler_) throw DoorError("a session begins with hello");
    if (time_ns < now_ns_) {
      throw DoorError(fmt::format("time_ns: is {}, and was {} before: it never falls in a session",
                                  time_ns, now_ns_));
    }
  }

  void answer(const message::Hello& m) {
    scheduler_.reset();  // a hello that is refused ends the session too
    const sim::SchedulerConfig config = config_of(m.limits, options_);
    if (const std::string problem = config.problem(); !problem.empty()) throw DoorError(problem);
    scheduler_.emplace(config, static_cast<sim::DecisionSink*>(this));
    steps_.clear();
    reply_.name = "loratory";
    reply_.claims = {.loads = true,
                     .prefix_cache = options_.prefix_cache,
                     .chunked_prefill = options_.chunked_prefill,
                     .preemption = true,
                     .pins = true,
                     .unloads = true,
                     .generations = true,
                     .waits = options_.blocking,
                     .plan_ahead = true,
                     .deterministic = true,
                     .max_overtakes = overtakes(m.limits, config)};
  }

  void answer(const message::Register& m) {
    const auto added =
        scheduler_->register_adapter(m.name, /*rank=*/8, /*bytes=*/1, m.replace, now_ns_);
    const bool is_new = added.status == sim::RegisterStatus::ok;
    reply_.status = is_new ? Status::ok : Status::exists;
    if (is_new) reply_.uid = added.uid;
  }
  void answer(const message::Unload& m) {
    const bool known = scheduler_->unload_adapter(m.name, m.abort_requests, now_ns_);
    if (!known) reply_.status = Status::unknown;
  }
  void answer(const message::Pin& m) {
    const sim::Uid uid = scheduler_->residency().find_name(m.name);
    const sim::PinStatus status =
        uid == sim::kBaseUid ? sim::PinStatus::unknown : scheduler_->pin(uid, now_ns_);
    if (status == sim::PinStatus::busy) reply_.status = Status::busy;
    if (status == sim::PinStatus::unknown) reply_.status = Status::unknown;
  }
  void answer(const message::Unpin& m) {
    const sim::Uid uid = scheduler_->residency().find_name(m.name);
    if (uid == sim::kBaseUid) {
      reply_.status = Status::unknown;
    } else {
      scheduler_->unpin(uid, now_ns_);
    }
  }

  void answer(const message::Submit& m) {
    sim::RequestSpec spec{.id = m.id,
                          .priority = m.priority,
                          .num_prompt_tokens = uint32_t(m.prompt.size()),
                          .max_new_tokens = m.max_new_tokens,
                          .tokens = m.prompt,
                          .stop_tokens = m.stop_tokens,
                          .disable_prefix_cache = !m.prefix_cache};
    if (!m.adapter.empty()) {
      spec.adapter = scheduler_->residency().find_name(m.adapter);
      if (spec.adapter == sim::kBaseUid) {
        reply_.status = Status::unknown;
        return;
      }
    }
    const sim::SubmitStatus status = scheduler_->submit(spec, now_ns_);
    if (status == sim::SubmitStatus::unknown_adapter) {
      reply_.status = Status::unknown;
    } else if (status != sim::SubmitStatus::ok) {
      reply_.status = Status::refused;
    }
  }
  void answer(const message::Abort& m) {
    if (scheduler_->find_request(m.id) == sim::kNoRequest) reply_.status = Status::unknown;
    scheduler_->abort(m.id, now_ns_);
  }

  // The scheduler takes the engine's word; somebody else's harness may have it wrong.
  void answer(const message::LoadDone& m) {
    if (!is_in(m.uid, sim::AdapterState::loading)) throw DoorError("load_done without a load");
    scheduler_->load_done(m.uid, m.ok, now_ns_);
  }
  void answer(const message::CopyDone& m) {
    const sim::Residency& residency = scheduler_->residency();
    if (!is_in(m.uid, sim::AdapterState::copying) ||
        residency.slot(residency.find_uid(m.uid)) != m.slot) {
      throw DoorError("copy_done without a copy into that slot");
    }
    scheduler_->copy_done(m.uid, now_ns_);
  }
  bool is_in(Uid uid, sim::AdapterState state) const {
    const sim::AdapterRef ref = scheduler_->residency().find_uid(uid);
    return ref != sim::kBaseRef && scheduler_->residency().state(ref) == state;
  }

  void answer(const message::Plan& m) {
    if (!steps_.empty() && !scheduler_->can_plan_ahead()) return;
    const sim::StepPlan& plan = scheduler_->plan(now_ns_);
    if (plan.empty()) return;
    steps_.push_back({.number = m.step, .samples = {}});
    for (const sim::StepRow& row : plan.rows) {
      reply_.rows.push_back(row_of(row));
      if (row.samples) steps_.back().samples.push_back(reply_.rows.back().id);
    }
    for (const sim::AdapterRef a : plan.wait_for) {
      reply_.wait_for.push_back(scheduler_->residency().uid(a));
    }
  }
  Row row_of(const sim::StepRow& row) const {
    const sim::Request& r = scheduler_->request(row.request);
    const bool is_base = row.adapter == sim::kBaseRef;
    return {.id = r.id,
            .uid = is_base ? kBaseUid : scheduler_->residency().uid(row.adapter),
            .slot = row.slot,
            .generation = row.generation,
            .start = row.num_computed,
            .num_tokens = row.num_tokens,
            .samples = row.samples,
            .blocks = r.blocks};
  }

  void answer(const message::Commit& m) {
    if (steps_.empty()) throw DoorError("commit without a step");
    if (m.step != steps_.front().number) {
      throw DoorError(
          fmt::format("commit of step {}: the oldest is {}", m.step, steps_.front().number));
    }
    if (!std::ranges::equal(m.sampled, steps_.front().samples, {}, &message::Sampled::id)) {
      throw DoorError(
          fmt::format("sampled: must have the ids [{}], the rows of step {} that sample",
                      fmt::join(steps_.front().samples, ", "), m.step));
    }
    steps_.erase(steps_.begin());
    std::vector<int32_t> tokens;
    for (const message::Sampled& s : m.sampled) tokens.push_back(s.token);
    scheduler_->commit({tokens}, now_ns_);
  }

  // --- decisions ----------------------------------------------------------------------------
  void on_decision(const sim::Decision& d) override {
    namespace dec = sim::decision;
    if (d.is<dec::Load>()) {
      add({.kind = Event::Kind::load, .uid = d.uid});
    } else if (const auto* copy = d.get_if<dec::Copy>()) {
      add({.kind = Event::Kind::copy, .uid = d.uid, .slot = copy->slot});
    } else if (const auto* evicted = d.get_if<dec::Eviction>()) {
      add({.kind = Event::Kind::evict,
           .uid = d.uid,
           .slot = evicted->slot,
           .from_cpu = evicted->from_cpu});
    } else if (const auto* failure = d.get_if<dec::LoadFailure>()) {
      if (!failure->is_retried) add({.kind = Event::Kind::give_up, .uid = d.uid});
    } else if (d.is<dec::Preemption>()) {
      add({.kind = Event::Kind::preempt, .id = d.request});
    } else if (const auto* end = d.get_if<dec::Finish>()) {
      add({.kind = Event::Kind::finish,
           .id = d.request,
           .reason = FinishReason(end->reason),
           .num_generated = end->num_generated});
    } else if (d.is<dec::Unload>()) {
      add({.kind = Event::Kind::unloaded, .uid = d.uid});
    }
  }
  void add(const Event& event) { reply_.events.push_back(event); }

  // The decision log has no generations; the transfers that begin have.
  void add_transfers() {
    for (const sim::CopyStart& copy : scheduler_->starts().copies) {
      for (Event& e : reply_.events) {
        const bool is_it = e.kind == Event::Kind::copy && e.uid == copy.uid && e.slot == copy.slot;
        if (is_it) e.generation = copy.generation;
      }
    }
    scheduler_->starts().clear();
  }

  OwnOptions options_;
  std::optional<sim::Scheduler> scheduler_;
  std::vector<Step> steps_;  // in flight
  int64_t now_ns_ = 0;
  Reply reply_;
};

}  // namespace

std::unique_ptr<SchedulerUnderTest> own_scheduler(const OwnOptions& options) {
  return std::make_unique<OwnScheduler>(options);
}

}  // namespace loratory::check
