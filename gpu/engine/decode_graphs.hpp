#pragma once

#include <cstdint>
#include <vector>

#include "gpu/engine/step_batch.hpp"

namespace loratory::gpu {

/// The CUDA graphs of an engine: decode steps of some numbers of rows, each with and without LoRA.
/// From 8 rows on there is one more for few adapters, of 9 to 32 rows another for eight, from 65
/// rows on another for fewer: a graph keeps its LoRA kernels and their grids, whatever batch it
/// replays, and those for as many adapters as there are slots are slower. Results are the same
/// bits. A step is replayed by the smallest graph with room for it, padded with base tokens [2.16].
/// One without adapters takes the graph without LoRA, whether or not slots are filled.
class DecodeGraphs {
 public:
  static constexpr int32_t kAnyNumber = INT32_MAX;

  /// 1, 2, 4, then steps of 8 up to 64, of 16 up to 128, of 32 up to 256, of 64 beyond; the last is
  /// the smaller of the two maxima. None if max_graph_rows is 0.
  DecodeGraphs(int64_t max_num_seqs, int32_t max_graph_rows, bool lora);

  struct Graph {
    int32_t num_rows = 0;
    int32_t max_adapters = 0;  ///< 0: without LoRA; kAnyNumber
    friend bool operator==(const Graph&, const Graph&) = default;
  };
  /// Largest first, so that what a capture allocates fits what came before it.
  const std::vector<Graph>& all() const { return graphs_; }
  /// The index of the graph that replays the batch, -1: it runs eagerly.
  int64_t find(const StepBatch& batch) const;
  static StepShape shape(const Graph& graph) {
    return {graph.num_rows, graph.num_rows, graph.num_rows};
  }

 private:
  std::vector<Graph> graphs_;
};

}  // namespace loratory::gpu
