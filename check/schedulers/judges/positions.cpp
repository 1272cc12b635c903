#include <fmt/format.h>

#include "check/schedulers/judges/judge_list.hpp"

namespace loratory::check {
namespace {

// Each row goes on where the one before ended, and samples if it reaches the last token.
class PositionsJudge final : public Judge {
 public:
  const char* name() const override { return "positions"; }

  std::string on_plan(const World& w, const Reply& reply, int64_t) override {
    for (const Row& row : reply.rows) {
      const std::string problem = of_row(w, *w.request(row.id), row);
      if (!problem.empty()) return fmt::format("request {}: {}", row.id, problem);
    }
    return {};
  }

 private:
  static std::string of_row(const World& w, const World::Request& r, const Row& row) {
    const uint64_t end = uint64_t{row.start} + row.num_tokens;
    if (row.num_tokens == 0) return "its row has no tokens";
    if (r.has_table && row.start != r.num_planned) {
      return fmt::format("its row begins at {}, and {} tokens have KV", row.start, r.num_planned);
    }
    if (end > r.num_total()) {
      return fmt::format("its row ends at {}, and it has {} tokens", end, r.num_total());
    }
    const bool samples = end == r.num_total();
    if (row.samples != samples) {
      return fmt::format("its row ends at {} of {} tokens, and samples is {}", end, r.num_total(),
                         row.samples);
    }
    if (!samples && !w.claims().chunked_prefill) {
      return fmt::format("its row ends at {} of {} tokens: chunked_prefill is not claimed", end,
                         r.num_total());
    }
    return {};
  }
};

}  // namespace

std::unique_ptr<Judge> make_positions_judge() { return std::make_unique<PositionsJudge>(); }

}  // namespace loratory::check
