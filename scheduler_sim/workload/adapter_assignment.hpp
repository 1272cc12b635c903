#pragma once

#include <cstdint>
#include <vector>

#include "scheduler_sim/trace/trace.hpp"
#include "scheduler_sim/workload/popularity.hpp"

namespace loratory::sim {

/// Adapters for a trace that has none.
struct AdapterAssignment {
  Popularity popularity;
  uint32_t num_adapters = 0;    ///< 0: as many as the file of `popularity` has
  std::vector<uint32_t> ranks;  ///< dealt in turn, see make_adapter_mix
  uint64_t seed = 0;
  bool replace = false;  ///< also when the trace names its own adapters
};

/// Draws an adapter for every request, each by itself: request i takes the adapter at number i of
/// the seed's stream. Throws InputError at "--adapters" when the trace has adapters of its own and
/// `replace` is false. Trace::adapters then holds the adapters that were drawn, in order of first
/// appearance, as if the trace had been read from a file.
void assign_adapters(Trace& trace, const AdapterAssignment& assignment);

/// Gives a rank to every adapter of the trace that has none: ranks[i % size] to adapter i.
void deal_missing_ranks(Trace& trace, const std::vector<uint32_t>& ranks);

/// Sets Trace::adapters to those of `adapters` that requests use, in order of first appearance,
/// and renumbers the requests, which hold indices into `adapters`.
void set_adapters(Trace& trace, const std::vector<TraceAdapter>& adapters);

}  // namespace loratory::sim
