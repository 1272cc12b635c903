#include "scheduler_sim/executors/plan_problem.hpp"

#include <fmt/format.h>

namespace loratory::sim {

using reference::SlotContent;

bool has_no_weights(const StepRow& row, const Scheduler& scheduler) {
  return row.adapter != kBaseRef && row.slot == kNoSlot &&
         scheduler.request(row.request).end_at_commit;
}

namespace {

std::string problem_of(const StepRow& row, const Residency& residency, int32_t num_slots,
                       const ContentOfSlot& content) {
  if (row.adapter == kBaseRef) {
    return row.slot == kNoSlot ? "" : fmt::format("a base row has slot {}", row.slot);
  }
  const Uid uid = residency.uid(row.adapter);
  if (row.slot < 0 || row.slot >= num_slots) {
    return fmt::format("adapter {} has slot {}", uid, row.slot);
  }
  const SlotContent planned{uid, row.generation}, found = content(row.slot);
  if (found == planned) return "";
  return fmt::format("slot {} holds adapter {} of generation {}, the plan says {} of {}", row.slot,
                     found.uid, found.generation, planned.uid, planned.generation);
}

}  // namespace

std::string plan_problem(const StepPlan& plan, const Scheduler& scheduler, int32_t num_slots,
                         const ContentOfSlot& content) {
  for (const StepRow& row : plan.rows) {
    if (has_no_weights(row, scheduler)) continue;
    std::string text = problem_of(row, scheduler.residency(), num_slots, content);
    if (!text.empty()) return text;
  }
  return "";
}

}  // namespace loratory::sim
