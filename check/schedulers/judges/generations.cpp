#include <fmt/format.h>

#include <algorithm>

#include "check/schedulers/judges/judge_list.hpp"

namespace loratory::check {
namespace {

// A slot's generation grows with each copy, and a row carries the one that its adapter has.
class GenerationsJudge final : public Judge {
 public:
  const char* name() const override { return "generations"; }
  const char* needs() const override { return "generations"; }
  bool applies(const Claims& claims) const override { return claims.generations; }

  std::string on_event(const World& w, const Message&, const Event& e) override {
    if (e.kind != Event::Kind::copy) return {};
    const uint64_t before = w.slots()[size_t(e.slot)].generation;
    if (e.generation > before) return {};
    return fmt::format("slot {} had generation {}, and the copy of uid {} gives it {}", e.slot,
                       before, e.uid, e.generation);
  }

  std::string on_start(const World& w, const World::Step& step) override {
    for (const Row& row : step.rows) {
      if (row.slot < 0 || row.slot >= w.limits().max_loras) continue;
      const uint64_t generation = w.slots()[size_t(row.slot)].generation;
      if (row.generation == generation) continue;
      return fmt::format("request {} reads generation {} of slot {}, which has {}", row.id,
                         row.generation, row.slot, generation);
    }
    return {};
  }
};

}  // namespace

std::unique_ptr<Judge> make_generations_judge() { return std::make_unique<GenerationsJudge>(); }

}  // namespace loratory::check
