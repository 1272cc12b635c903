#include <fmt/format.h>

#include <map>

#include "check/schedulers/judges/judge_list.hpp"

namespace loratory::check {
namespace {

// While a request waits, later ones of its priority come before it at most so often as was claimed.
// A wait ends with a row; another one begins when the request is preempted. Plans during which an
// adapter moves do not count.
class OvertakingJudge final : public Judge {
 public:
  const char* name() const override { return "overtaking"; }
  const char* needs() const override { return "max_overtakes"; }
  bool applies(const Claims& claims) const override { return claims.max_overtakes >= 0; }

  std::string on_plan(const World& w, const Reply& reply, int64_t) override {
    std::map<int32_t, size_t> latest;  // by priority: the last that runs for the first time
    for (const Row& row : reply.rows) {
      const World::Request& r = *w.request(row.id);
      if (!r.has_run) latest[r.priority] = std::max(latest[r.priority], r.serial);
      num_overtakes_.erase(r.serial);
    }
    if (latest.empty() || w.is_moving()) return {};
    for (const auto& [id, serial] : w.live()) {
      const World::Request& r = w.requests()[serial];
      if (r.has_table || r.aborted || has_row(reply, id)) continue;
      const auto later = latest.find(r.priority);
      if (later == latest.end() || later->second < serial) continue;
      if (++num_overtakes_[serial] <= w.claims().max_overtakes) continue;
      return fmt::format("request {} waits, and later ones were first in {} plans; {} is claimed",
                         id, num_overtakes_[serial], w.claims().max_overtakes);
    }
    return {};
  }

 private:
  static bool has_row(const Reply& reply, uint64_t id) {
    for (const Row& row : reply.rows) {
      if (row.id == id) return true;
    }
    return false;
  }
  std::map<size_t, int64_t> num_overtakes_;  // by serial
};

}  // namespace

std::unique_ptr<Judge> make_overtaking_judge() { return std::make_unique<OvertakingJudge>(); }

}  // namespace loratory::check
