#pragma once

#include <vector>

#include "fuzz/support/layer_case.hpp"
#include "gpu/api/lora_layer.hpp"

// Layers of gate and up, for tests of LoRA that ends with SwiGLU.

namespace loratory::gpu {

/// What a case may cost.
struct GateAndUpLimits {
  int64_t num_tokens, num_in, size;  ///< size: columns of the activation
};

/// A layer and a step, aligned. Some slots lack gate, up or both; some rows have no adapter, and in
/// some steps none has. y is finite and has -0 among its numbers.
reference::LayerData gate_and_up(uint64_t seed, reference::Dtype dtype,
                                 const GateAndUpLimits& limits);

/// gate|up and down of a dense MLP, and a step: x of down is the activation. Its size is one whose
/// splits all hold sums of down's ranks, up to 64. Some slots lack down.
struct DenseMlp {
  reference::LayerData gate_up, down;
};
DenseMlp dense_mlp(uint64_t seed, reference::Dtype dtype, const GateAndUpLimits& limits);

/// One shrink of each size of segments meets every gated expand that divides them.
std::vector<SiluMulVariants> silu_mul_variants(bool has_clusters, bool has_wgmma);

/// "rank_tiles=1 ..., then rank_tiles=1 ..."
std::string describe(const SiluMulVariants& variants);

}  // namespace loratory::gpu
