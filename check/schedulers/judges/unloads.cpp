#include <fmt/format.h>

#include <algorithm>

#include "check/schedulers/judges/judge_list.hpp"

namespace loratory::check {
namespace {

// A retired adapter serves its requests to their end, and then goes: not before, and not never.
class UnloadsJudge final : public Judge {
 public:
  const char* name() const override { return "unloads"; }
  const char* needs() const override { return "unloads"; }
  bool applies(const Claims& claims) const override { return claims.unloads; }

  std::string on_event(const World& w, const Message&, const Event& e) override {
    if (e.kind != Event::Kind::unloaded) return {};
    if (!w.adapter(e.uid)->retiring) {
      return fmt::format("uid {} is unloaded, which nobody asked for", e.uid);
    }
    if (const int64_t num_live = w.num_live_of(e.uid); num_live > 0) {
      return fmt::format("uid {} is unloaded, and {} requests of it live", e.uid, num_live);
    }
    const auto reads = [&](const World::Step& step) {
      return std::ranges::count(step.rows, e.uid, &Row::uid) > 0;
    };
    if (!std::ranges::any_of(w.steps(), reads)) return {};
    return fmt::format("uid {} is unloaded, and a step in flight has rows of it", e.uid);
  }

  std::string at_end(const World& w) override {
    for (const auto& [uid, a] : w.adapters()) {
      if (a.retiring && !a.unloaded) {
        return fmt::format("uid {} was unloaded and its requests ended, and it never went", uid);
      }
    }
    return {};
  }
};

}  // namespace

std::unique_ptr<Judge> make_unloads_judge() { return std::make_unique<UnloadsJudge>(); }

}  // namespace loratory::check
