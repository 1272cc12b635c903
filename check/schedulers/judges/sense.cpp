#include <fmt/format.h>

#include <algorithm>

#include "check/schedulers/json_lines.hpp"
#include "check/schedulers/judges/judge_list.hpp"

namespace loratory::check {
namespace {

using Kind = Event::Kind;

// Does what the scheduler says have a meaning in the world as it is? What an event names exists, is
// in a state in which it can happen, and was claimed.
class SenseJudge final : public Judge {
 public:
  const char* name() const override { return "sense"; }

  std::string on_event(const World& w, const Message&, const Event& e) override {
    if (e.kind == Kind::preempt || e.kind == Kind::finish) return about_request(w, e);
    const World::Adapter* const a = w.adapter(e.uid);
    if (a == nullptr)
      return fmt::format("{} of uid {}, which was never given out", word_of(e.kind), e.uid);
    if (a->unloaded) return fmt::format("{} of uid {}, which was unloaded", word_of(e.kind), e.uid);
    const std::string problem = about_adapter(w, *a, e);
    return problem.empty() ? "" : fmt::format("{} of uid {}: {}", word_of(e.kind), e.uid, problem);
  }

  std::string on_plan(const World& w, const Reply& reply, int64_t) override {
    for (const Row& row : reply.rows) {
      if (w.request(row.id) == nullptr) {
        return fmt::format("a row of request {}, which is not live", row.id);
      }
    }
    if (!reply.wait_for.empty() && !w.claims().waits) return "wait_for, which is not claimed";
    for (const Uid uid : reply.wait_for) {
      const World::Adapter* const a = w.adapter(uid);
      if (a == nullptr || a->unloaded) return fmt::format("waits for uid {}, which is gone", uid);
    }
    return {};
  }

 private:
  static std::string about_request(const World& w, const Event& e) {
    const World::Request* const r = w.request(e.id);
    if (r == nullptr)
      return fmt::format("{} of request {}, which is not live", word_of(e.kind), e.id);
    if (e.kind == Kind::finish) return {};
    if (!w.claims().preemption)
      return fmt::format("preempt of request {}: preemption is not claimed", e.id);
    if (!r->has_table) return fmt::format("preempt of request {}, which does not run", e.id);
    return {};
  }

  static std::string about_adapter(const World& w, const World::Adapter& a, const Event& e) {
    switch (e.kind) {
      case Kind::load:
        if (!w.claims().loads) return "loads are not claimed";
        if (a.loading) return "it is being loaded";
        return a.on_cpu ? "it is in host memory" : "";
      case Kind::copy:
        if (e.slot < 0 || e.slot >= w.limits().max_loras) {
          return fmt::format("there is no slot {}", e.slot);
        }
        if (a.copying) return "it is being copied";
        return a.on_cpu ? "" : "it is not in host memory";
      case Kind::evict:
        return about_eviction(w, a, e);
      case Kind::give_up:
        return a.num_failed_loads > 0 ? "" : "no load of it failed";
      case Kind::unloaded:
        return a.loading || a.copying ? "it is on its way" : "";
      default:
        return {};
    }
  }

  static std::string about_eviction(const World& w, const World::Adapter& a, const Event& e) {
    if (a.copying) return "it is being copied";
    if (e.from_cpu && !w.claims().loads) return "from_cpu, and loads are not claimed";
    if (e.from_cpu && !a.on_cpu) return "it is not in host memory";
    const auto owns = [&](const World::Slot& slot) { return slot.owner == a.uid; };
    const bool is_on_gpu = std::ranges::any_of(w.slots(), owns);
    if (e.slot == kNoSlot) {
      if (is_on_gpu) return "slot -1, and it is in a slot";
      return e.from_cpu ? "" : "it was nowhere";
    }
    const bool has_it =
        e.slot < w.limits().max_loras && e.slot >= 0 && w.slots()[size_t(e.slot)].owner == a.uid;
    return has_it ? "" : fmt::format("it is not in slot {}", e.slot);
  }
};

}  // namespace

std::unique_ptr<Judge> make_sense_judge() { return std::make_unique<SenseJudge>(); }

}  // namespace loratory::check
