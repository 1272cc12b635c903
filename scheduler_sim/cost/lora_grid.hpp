#pragma once

#include <cstdint>

#include "scheduler_sim/cost/lora_shapes.hpp"
#include "scheduler_sim/cost/model_spec.hpp"

namespace loratory::sim {

/// Tiles of vLLM's Triton kernels. Source: vLLM 0.8.5, lora/ops/triton_ops/lora_shrink.py,
/// lora_expand.py.
struct LoraTiles {
  static constexpr int64_t kShrinkRows = 32, kShrinkRanks = 16;
  static constexpr int64_t kExpandRows = 64, kExpandColumns = 128;
  static constexpr int64_t kSmallBatch = 128;  ///< tokens; K is split finer below

  static constexpr int64_t splits(int64_t num_tokens) { return num_tokens < kSmallBatch ? 64 : 8; }
};

/// The thread blocks that vLLM's Triton kernels launch in a step, whatever the batch needs: for
/// every slot and one for no adapter, every tile of tokens, and
///   shrink  every split of K and every 16 ranks of every slice (64 splits below 128 tokens, else
///   8) expand  every 128 columns of the widest slice, for every slice
/// Source: vLLM 0.8.5, lora/ops/triton_ops/lora_shrink.py, lora_expand.py, lora_kernel_metadata.py.
class LoraGrid {
 public:
  /// No slots: no blocks.
  LoraGrid() = default;
  LoraGrid(const ModelSpec& model, const LoraTargets& targets, int tp, int64_t max_lora_rank,
           int64_t max_loras);

  double shrink_blocks(int64_t num_tokens) const;
  double expand_blocks(int64_t num_tokens) const;

 private:
  double shrinks_ = 0;  // slots x slices x tiles of ranks, all layers
  double expands_ = 0;  // slots x slices x tiles of columns, all layers
};

}  // namespace loratory::sim
