#pragma once

#include <iosfwd>
#include <span>

#include "scheduler_sim/sizing/size_result.hpp"
#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

/// report.html: one page that needs no network. The verdict first, then the table of
/// configurations, the charts (inline SVG, each with a text alternative and a table) and the
/// definitions. A replay has no charts of a sweep.
///
/// `adapters` gives the names in the slot timeline. Every string of the trace is escaped. Long
/// series are thinned by fixed rules, so the page stays below 1.5 MB. Same result, same bytes.
void write_html(std::ostream& out, const SizeResult& result,
                std::span<const TraceAdapter> adapters);

}  // namespace loratory::sim
