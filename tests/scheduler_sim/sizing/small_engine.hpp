#pragma once

#include <memory>
#include <string>

#include "scheduler_sim/sizing/engine_replay.hpp"

namespace loratory::sim {

inline constexpr int64_t kMillisecond = 1'000'000;

/// Every step takes 10 ms.
class TenMilliseconds : public StepTimeModel {
 public:
  int64_t step_ns(const BatchShape&) const override { return 10 * kMillisecond; }
};

// Adapters 0, 1, 2, 0, 1, 2, ... one request every 20 ms.
inline Trace round_robin(uint32_t num_adapters, size_t num_requests) {
  Trace trace;
  for (uint32_t a = 0; a < num_adapters; ++a) trace.adapters.push_back({std::to_string(a), 16});
  for (size_t i = 0; i < num_requests; ++i) {
    TraceRequest r;
    r.arrival_ns = int64_t(i) * 20 * kMillisecond;
    r.prompt_tokens = 100;
    r.output_tokens = 10;
    r.adapter = AdapterIndex(i % num_adapters);
    trace.requests.push_back(r);
  }
  return trace;
}

inline EngineSpec engine() {
  EngineSpec engine;
  engine.model = load_model_spec("Llama-3.1-8B");
  engine.gpu = parse_gpu_spec("H100-80");
  engine.make_step_time = [](EnginePoint) { return std::make_unique<TenMilliseconds>(); };
  return engine;
}

}  // namespace loratory::sim
