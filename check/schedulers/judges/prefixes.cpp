#include <fmt/format.h>

#include <algorithm>

#include "check/schedulers/judges/judge_list.hpp"

namespace loratory::check {
namespace {

// Where a request begins behind KV that it did not compute, somebody with the same adapter and the
// same tokens has computed it, in an earlier step, and nobody has written over it since.
class PrefixesJudge final : public Judge {
 public:
  const char* name() const override { return "prefixes"; }

  std::string on_plan(const World& w, const Reply& reply, int64_t step) override {
    for (const Row& row : reply.rows) {
      const World::Request& r = *w.request(row.id);
      if (r.has_table || row.start == 0) continue;
      std::string problem;
      if (!w.claims().prefix_cache) {
        problem = "prefix_cache is not claimed";
      } else if (!r.prefix_cache) {
        problem = "the request forbids it";
      }
      for (uint32_t p = 0; p < row.start && problem.empty(); ++p) {
        problem = of_position(w, r, row, p, step);
      }
      if (!problem.empty()) {
        return fmt::format("request {} begins at {}: {}", row.id, row.start, problem);
      }
    }
    return {};
  }

 private:
  static std::string of_position(const World& w, const World::Request& r, const Row& row,
                                 uint32_t p, int64_t step) {
    const uint32_t size = w.limits().block_size;
    // Judges who object to such a table, or to such a length, may not have been asked.
    if (p / size >= row.blocks.size()) return fmt::format("position {} is in no block", p);
    const uint32_t block = row.blocks[p / size];
    if (block >= w.limits().num_blocks) return fmt::format("there is no block {}", block);
    if (p >= r.tokens.size()) return fmt::format("it has {} tokens", r.tokens.size());
    const World::Written& written = w.written(block, p % size);
    const std::string where = fmt::format("position {} in block {}", p, block);
    if (written.request == World::kNobody || written.step >= step) {
      return fmt::format("nobody has computed {}", where);
    }
    const World::Request& writer = w.requests()[written.request];
    if (writer.uid != r.uid) {
      return fmt::format("{} was computed with uid {}, and the request is for uid {}", where,
                         writer.uid, r.uid);
    }
    const bool is_same =
        written.position == p && p < writer.tokens.size() &&
        std::equal(writer.tokens.begin(), writer.tokens.begin() + p + 1, r.tokens.begin());
    if (!is_same) return fmt::format("{} was computed from other tokens", where);
    if (!writer.prefix_cache && writer.serial != r.serial) {
      return fmt::format("{} is of request {}, which leaves nothing", where, writer.id);
    }
    return {};
  }
};

}  // namespace

std::unique_ptr<Judge> make_prefixes_judge() { return std::make_unique<PrefixesJudge>(); }

}  // namespace loratory::check
