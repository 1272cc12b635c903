#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "scheduler_sim/simulator/simulator.hpp"

namespace loratory::sim {

/// Every step takes as long.
struct FixedTime : StepTimeModel {
  explicit FixedTime(int64_t ns) : ns_(ns) {}
  int64_t step_ns(const BatchShape&) const override { return ns_; }
  int64_t ns_;
};

inline TraceRequest at(int64_t arrival_ns, AdapterIndex adapter, uint32_t prompt, uint32_t output) {
  TraceRequest r;
  r.arrival_ns = arrival_ns;
  r.adapter = adapter;
  r.prompt_tokens = prompt;
  r.output_tokens = output;
  return r;
}

/// Requests of the adapters "a" and "b".
inline Trace two_adapters(std::vector<TraceRequest> requests) {
  Trace t;
  t.adapters = {{"a", 8}, {"b", 8}};
  t.requests = std::move(requests);
  return t;
}

/// Gives the requests block ids, one list for each; they are cut into blocks of `block_tokens`.
inline void add_contents(Trace& t, uint32_t block_tokens,
                         const std::vector<std::vector<uint64_t>>& lists) {
  t.block_tokens = block_tokens;
  for (size_t i = 0; i < lists.size(); ++i) {
    t.requests[i].content_begin = t.block_ids.size();
    t.requests[i].content_count = uint32_t(lists[i].size());
    t.block_ids.insert(t.block_ids.end(), lists[i].begin(), lists[i].end());
  }
}

/// One slot, two adapters on the CPU, blocks of 4 tokens. A load takes 100 ns and a copy 10.
inline SimulationConfig tiny_config(LoadMode mode) {
  SimulationConfig c;
  c.keep_log = true;
  c.scheduler.residency = {.max_loras = 1, .max_cpu_loras = 2};
  c.scheduler.load_mode = mode;
  c.scheduler.block_size = 4;
  c.scheduler.num_blocks = 100;
  c.loads.disk_latency_ns = 100;
  c.loads.h2d_latency_ns = 10;
  c.adapter_bytes = {0, 0};
  c.adapter_ranks = {8, 8};
  return c;
}

/// The metrics of a finished replay, with every detail.
inline ConfigResult result_of(Simulator& simulator, const Slo& slo = {}) {
  ConfigResult result;
  simulator.metrics().fill(result, slo, simulator.scheduler().config().block_size,
                           /*keep_details=*/true);
  return result;
}

}  // namespace loratory::sim
