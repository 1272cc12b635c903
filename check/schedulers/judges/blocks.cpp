#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "check/schedulers/judges/judge_list.hpp"

namespace loratory::check {
namespace {

// A block that is written is its writer's alone: in no table of another request that runs, and in
// none of a row in flight. A table only grows.
class BlocksJudge final : public Judge {
 public:
  const char* name() const override { return "blocks"; }

  std::string on_plan(const World& w, const Reply& reply, int64_t) override {
    for (const Row& row : reply.rows) {
      const std::string problem = of_table(w, *w.request(row.id), row);
      if (!problem.empty()) return fmt::format("request {}: {}", row.id, problem);
    }
    collect_users(w, reply);
    for (const Row& row : reply.rows) {
      const std::string problem = of_writes(w, row);
      if (!problem.empty()) return fmt::format("request {}: {}", row.id, problem);
    }
    return {};
  }

 private:
  static std::string of_table(const World& w, const World::Request& r, const Row& row) {
    const uint64_t end = uint64_t{row.start} + row.num_tokens;
    if (row.blocks.size() * uint64_t{w.limits().block_size} < end) {
      return fmt::format("its table has {} blocks, too few for {} tokens", row.blocks.size(), end);
    }
    std::set<uint32_t> seen;
    for (const uint32_t block : row.blocks) {
      if (block == 0 || block >= w.limits().num_blocks) {
        return fmt::format("its table has block {}, which is nobody's", block);
      }
      if (!seen.insert(block).second) return fmt::format("its table has block {} twice", block);
    }
    if (!r.has_table) return {};
    const size_t kept = std::min(r.table.size(), row.blocks.size());
    for (size_t i = 0; i < kept; ++i) {
      if (r.table[i] != row.blocks[i]) {
        return fmt::format("block {} of its table was {} and is {}", i, r.table[i], row.blocks[i]);
      }
    }
    return {};
  }

  // Serials of whoever has the block in a table, or will have it with this plan.
  void collect_users(const World& w, const Reply& reply) {
    users_.clear();
    const auto add = [&](const std::vector<uint32_t>& table, size_t serial) {
      for (const uint32_t block : table) users_[block].insert(serial);
    };
    for (const auto& [id, serial] : w.live()) add(w.requests()[serial].table, serial);
    for (const World::Step& step : w.steps()) {
      for (size_t i = 0; i < step.rows.size(); ++i) add(step.rows[i].blocks, step.requests[i]);
    }
    for (const Row& row : reply.rows) add(row.blocks, w.request(row.id)->serial);
  }

  std::string of_writes(const World& w, const Row& row) {
    const uint32_t size = w.limits().block_size;
    const size_t serial = w.request(row.id)->serial;
    for (uint32_t i = row.start / size; i <= (row.start + row.num_tokens - 1) / size; ++i) {
      for (const size_t user : users_[row.blocks[i]]) {
        if (user == serial) continue;
        const World::Request& other = w.requests()[user];
        return fmt::format("it writes block {}, which request {} {}", row.blocks[i], other.id,
                           other.live ? "has in its table" : "has in a step in flight");
      }
    }
    return {};
  }

  std::map<uint32_t, std::set<size_t>> users_;
};

}  // namespace

std::unique_ptr<Judge> make_blocks_judge() { return std::make_unique<BlocksJudge>(); }

}  // namespace loratory::check
