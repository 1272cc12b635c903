#include <fmt/format.h>

#include "check/schedulers/judges/judge_list.hpp"

namespace loratory::check {
namespace {

// When a step begins each row's adapter is in the slot that the row names, all of it; and until the
// step ends nobody gives that slot away.
class SlotsJudge final : public Judge {
 public:
  const char* name() const override { return "slots"; }

  std::string on_event(const World& w, const Message&, const Event& e) override {
    if (e.kind == Event::Kind::copy) {
      const World::Slot& slot = w.slots()[size_t(e.slot)];
      if (slot.owner != kBaseUid && !slot.ready) {
        return fmt::format("a copy of uid {} into slot {}, into which uid {} is being copied",
                           e.uid, e.slot, slot.owner);
      }
      return of_slot(w, e.slot, fmt::format("a copy of uid {}", e.uid));
    }
    if (e.kind != Event::Kind::evict && e.kind != Event::Kind::unloaded) return {};
    for (size_t i = 0; i < w.slots().size(); ++i) {
      if (w.slots()[i].owner != e.uid) continue;
      const char* const what = e.kind == Event::Kind::evict ? "eviction" : "unload";
      const std::string problem = of_slot(w, int32_t(i), fmt::format("{} of uid {}", what, e.uid));
      if (!problem.empty()) return problem;
    }
    return {};
  }

  std::string on_start(const World& w, const World::Step& step) override {
    for (const Row& row : step.rows) {
      if (row.uid == kBaseUid) {
        if (row.slot == kNoSlot) continue;
        return fmt::format("request {} is for the base model, and its row names slot {}", row.id,
                           row.slot);
      }
      if (step.leaves_out(row.uid) && row.slot == kNoSlot) continue;
      if (row.slot < 0 || row.slot >= w.limits().max_loras) {
        return fmt::format("request {}: the step begins, and its adapter has no slot", row.id);
      }
      const World::Slot& slot = w.slots()[size_t(row.slot)];
      if (slot.owner == row.uid && slot.ready) continue;
      return fmt::format("request {} reads uid {} in slot {}, which {}", row.id, row.uid, row.slot,
                         slot.owner == kBaseUid  ? "is empty"
                         : slot.owner == row.uid ? "it is still being copied to"
                                                 : fmt::format("is uid {}'s", slot.owner));
    }
    return {};
  }

 private:
  static std::string of_slot(const World& w, int32_t slot, const std::string& what) {
    const World::Step* const reader = w.reader_of_slot(slot);
    if (reader == nullptr) return {};
    return fmt::format("{}, while step {} in flight reads slot {}", what, reader->number, slot);
  }
};

}  // namespace

std::unique_ptr<Judge> make_slots_judge() { return std::make_unique<SlotsJudge>(); }

}  // namespace loratory::check
