#include <fmt/format.h>

#include <algorithm>

#include "check/schedulers/judges/judge_list.hpp"

namespace loratory::check {
namespace {

// Host memory has max_cpu_loras places, and only so many loads run at a time. Those that run
// already count, and so does what is on the GPU.
class TiersJudge final : public Judge {
 public:
  const char* name() const override { return "tiers"; }
  const char* needs() const override { return "loads"; }
  bool applies(const Claims& claims) const override { return claims.loads; }

  std::string on_event(const World& w, const Message&, const Event& e) override {
    if (e.kind != Event::Kind::load) return {};
    int32_t num_loading = 0, num_on_cpu = 0;
    for (const auto& [uid, a] : w.adapters()) {
      num_loading += int32_t(a.loading);
      num_on_cpu += int32_t(a.on_cpu);
    }
    if (num_loading >= w.limits().num_load_workers) {
      return fmt::format("a load of uid {}, and {} run already", e.uid, num_loading);
    }
    if (num_on_cpu + num_loading >= w.limits().max_cpu_loras) {
      return fmt::format("a load of uid {}, and all {} places in host memory are taken", e.uid,
                         w.limits().max_cpu_loras);
    }
    return {};
  }
};

}  // namespace

std::unique_ptr<Judge> make_tiers_judge() { return std::make_unique<TiersJudge>(); }

}  // namespace loratory::check
