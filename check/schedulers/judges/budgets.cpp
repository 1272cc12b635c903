#include <fmt/format.h>

#include <set>

#include "check/schedulers/judges/judge_list.hpp"

namespace loratory::check {
namespace {

// What a step may hold: rows, tokens, adapters, and each request once.
class BudgetsJudge final : public Judge {
 public:
  const char* name() const override { return "budgets"; }

  std::string on_plan(const World& w, const Reply& reply, int64_t) override {
    std::set<uint64_t> ids;
    std::set<Uid> uids;
    uint64_t num_tokens = 0;
    for (const Row& row : reply.rows) {
      if (!ids.insert(row.id).second) return fmt::format("request {} has two rows", row.id);
      if (row.uid != kBaseUid) uids.insert(row.uid);
      num_tokens += row.num_tokens;
    }
    const Limits& l = w.limits();
    if (reply.rows.size() > l.max_num_seqs) {
      return fmt::format("{} rows, and max_num_seqs is {}", reply.rows.size(), l.max_num_seqs);
    }
    if (num_tokens > l.max_num_batched_tokens) {
      return fmt::format("{} tokens, and max_num_batched_tokens is {}", num_tokens,
                         l.max_num_batched_tokens);
    }
    if (uids.size() > size_t(l.max_loras)) {
      return fmt::format("{} adapters, and max_loras is {}", uids.size(), l.max_loras);
    }
    return {};
  }
};

}  // namespace

std::unique_ptr<Judge> make_budgets_judge() { return std::make_unique<BudgetsJudge>(); }

}  // namespace loratory::check
