#pragma once

#include <iosfwd>
#include <span>

#include "scheduler_sim/sizing/size_result.hpp"
#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

/// A Chrome trace (JSON object format) of one configuration, for ui.perfetto.dev. Times are
/// microseconds of virtual time, exact to the nanosecond.
///
/// - process "adapter slots": a row for each slot, which adapter was resident, with its rank;
/// - process "engine": counters of requests running and waiting, KV blocks used, adapters on the
/// GPU;
/// - process "requests": an async track for each request that ended, with queued, prefill (first
///   scheduled to first token) and decode; its args hold tokens, cached tokens and preemptions.
///
/// Draws what the result kept: slot_spans, timeline and requests. Cost O(their number).
void write_perfetto(std::ostream& out, const ConfigResult& config, const Provenance& provenance,
                    std::span<const TraceAdapter> adapters);

}  // namespace loratory::sim
