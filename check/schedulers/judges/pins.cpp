#include <fmt/format.h>

#include "check/schedulers/judges/judge_list.hpp"

namespace loratory::check {
namespace {

// A pinned adapter keeps its slot until it is unpinned or unloaded.
class PinsJudge final : public Judge {
 public:
  const char* name() const override { return "pins"; }
  const char* needs() const override { return "pins"; }
  bool applies(const Claims& claims) const override { return claims.pins; }

  std::string on_event(const World& w, const Message&, const Event& e) override {
    if (e.kind == Event::Kind::evict && w.adapter(e.uid)->pinned) {
      return fmt::format("eviction of uid {}, which is pinned", e.uid);
    }
    if (e.kind != Event::Kind::copy) return {};
    const Uid owner = w.slots()[size_t(e.slot)].owner;
    if (owner == kBaseUid || owner == e.uid || !w.adapter(owner)->pinned) return {};
    return fmt::format("a copy of uid {} into slot {} of uid {}, which is pinned", e.uid, e.slot,
                       owner);
  }
};

}  // namespace

std::unique_ptr<Judge> make_pins_judge() { return std::make_unique<PinsJudge>(); }

}  // namespace loratory::check
