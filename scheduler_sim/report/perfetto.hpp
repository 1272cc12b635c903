#pragma once

#include <iosfwd>
#include <span>
#include <string_view>

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
/// Draws what the result kept: slot_spans, timeline and requests, the first of each up to `limits`;
/// "otherData" of the file says how many of how many. Cost O(their number).
struct PerfettoLimits {
  size_t requests = 20'000;     ///< at most 8 events each, about 150 bytes an event
  size_t slot_spans = 100'000;  ///< one event each
};

/// What was drawn, of how much.
struct PerfettoExtent {
  size_t requests = 0, all_requests = 0;
  size_t slot_spans = 0, all_slot_spans = 0;
  bool is_complete() const { return requests == all_requests && slot_spans == all_slot_spans; }
};

PerfettoExtent write_perfetto(std::ostream& out, const ConfigResult& config,
                              const Provenance& provenance, std::span<const TraceAdapter> adapters,
                              PerfettoLimits limits = {});

struct PerfettoRun {
  std::string_view name;  ///< "real"
  const ConfigResult& config;
};
/// Two runs of one trace over each other: each of the three processes twice, that of `a` above that
/// of `b`, with the runs' names behind theirs. Metadata and extent are those of `a`.
PerfettoExtent write_perfetto(std::ostream& out, const PerfettoRun& a, const PerfettoRun& b,
                              const Provenance& provenance, std::span<const TraceAdapter> adapters,
                              PerfettoLimits limits = {});

}  // namespace loratory::sim
