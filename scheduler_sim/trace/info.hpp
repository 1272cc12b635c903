#pragma once

#include <span>
#include <string>

#include "scheduler_sim/trace/reuse.hpp"
#include "scheduler_sim/trace/summary.hpp"
#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

/// What `loratory trace info` prints: aligned, within 100 columns, newline at the end.
std::string info_table(const Trace& trace, const TraceSummary& summary,
                       std::span<const PrefixReuse> reuse);

/// The same as JSON, all adapters included. An unbounded capacity is null.
std::string info_json(const Trace& trace, const TraceSummary& summary,
                      std::span<const PrefixReuse> reuse);

}  // namespace loratory::sim
