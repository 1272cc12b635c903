#include "scheduler_sim/workload/adapter_assignment.hpp"

#include <fmt/format.h>

#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"
#include "scheduler_sim/workload/random.hpp"

namespace loratory::sim {

void assign_adapters(Trace& trace, const AdapterAssignment& assignment) {
  if (!trace.adapters.empty() && !assignment.replace) {
    throw InputError("--adapters",
                     fmt::format("the trace names {} adapters of its own", trace.adapters.size()),
                     "leave the flag out to use them, or add --replace-adapters");
  }
  const AdapterMix mix =
      make_adapter_mix(assignment.popularity, assignment.num_adapters, assignment.ranks);
  const RandomStream picks(assignment.seed, Purpose::adapters);
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    TraceRequest& request = trace.requests[i];
    request.adapter = mix.pick(picks.unit(i), request.arrival_ns);
  }
  set_adapters(trace, mix.adapters());
}

void deal_missing_ranks(Trace& trace, const std::vector<uint32_t>& ranks) {
  LORATORY_ASSERT(!ranks.empty(), "there must be a rank to assign");
  for (size_t i = 0; i < trace.adapters.size(); ++i) {
    if (trace.adapters[i].rank == 0) trace.adapters[i].rank = ranks[i % ranks.size()];
  }
}

void set_adapters(Trace& trace, const std::vector<TraceAdapter>& adapters) {
  std::vector<AdapterIndex> new_index(adapters.size(), kBaseModel);
  trace.adapters.clear();
  for (TraceRequest& request : trace.requests) {
    if (request.adapter == kBaseModel) continue;
    AdapterIndex& index = new_index[request.adapter];
    if (index == kBaseModel) {
      index = AdapterIndex(trace.adapters.size());
      trace.adapters.push_back(adapters[request.adapter]);
    }
    request.adapter = index;
  }
}

}  // namespace loratory::sim
