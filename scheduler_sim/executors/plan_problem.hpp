#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "reference/model/slot_weights.hpp"
#include "scheduler_sim/scheduler/scheduler.hpp"

// What executors with slots of their own ask of a plan's rows.

namespace loratory::sim {

/// Whether the row waited for an adapter which then failed to load. It ends at the commit, and no
/// step computes it.
bool has_no_weights(const StepRow& row, const Scheduler& scheduler);

/// What a slot holds now. Called with slots in [0, num_slots).
using ContentOfSlot = std::function<reference::SlotContent(int32_t slot)>;

/// The first row whose slot does not hold its adapter, in one line; empty if there is none.
std::string plan_problem(const StepPlan& plan, const Scheduler& scheduler, int32_t num_slots,
                         const ContentOfSlot& content);

}  // namespace loratory::sim
