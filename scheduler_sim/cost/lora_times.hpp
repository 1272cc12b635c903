#pragma once

#include <cstdint>
#include <vector>

#include "scheduler_sim/cost/lora_grid.hpp"
#include "scheduler_sim/cost/lora_kernels.hpp"
#include "scheduler_sim/cost/roofline_options.hpp"
#include "scheduler_sim/cost/step_time.hpp"

namespace loratory::sim {

/// What adapters add to a step, from measured kernels (lora_kernels.hpp) on the model's own layers,
/// scaled to the GPU: thread blocks by multiprocessors x clock, bytes by bandwidth; launches and
/// latencies stay. Padded ranks and the grid over every slot as in RooflineOptions.
class LoraTimes {
 public:
  LoraTimes(const ModelSpec& model, const GpuSpec& gpu, const RooflineOptions& options);

  /// The GPU's time in a step whose input has `grid_tokens` rows. A step without adapters has none,
  /// unless it replays a graph that holds the kernels.
  double gpu_ns(const BatchShape& shape, int64_t grid_tokens, bool graph) const;
  /// The host's time for the launches, outside of graphs.
  double launch_ns(const BatchShape& shape, double kernel_launch_ns) const;
  /// What the host computes for adapters before the step.
  double host_ns(const BatchShape& shape) const;

 private:
  struct Layers {
    LoraLayer layer;
    LoraGeometry geometry{layer};
    double launches = 0;
    bool sampled_rows = false;  // lm_head
    double experts = 0;         // 0: none
    double experts_per_token = 0;
  };
  double layers_ns(const BatchShape& shape, int64_t grid_tokens) const;
  LoraBatch batch_of(const BatchShape& shape, int64_t grid_tokens) const;
  LoraBatch of_layers(const Layers& layers, LoraBatch batch, const BatchShape& shape) const;

  uint64_t id_;  // of these times; copies are alike
  RooflineOptions options_;
  LoraScale scale_;
  double weight_bytes_ = 2;
  std::vector<Layers> layers_;
  LoraGrid grid_;  // of kernels that would not launch it themselves
};

}  // namespace loratory::sim
