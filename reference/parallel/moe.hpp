#pragma once

#include <vector>

#include "reference/moe/moe_layer.hpp"
#include "reference/parallel/collectives.hpp"

// A mixture-of-experts layer with LoRA on P tp_ranks, written as the steps of each and the
// collectives between them. All tp_ranks see all tokens and the same rows in the same order.

namespace loratory::reference {

struct MoeParallel {
  int64_t tp_size = 1;  ///< P
  /// The LoRA matrices that the base layer does not cut are cut too, along rank or H.
  bool fully_sharded = false;
  /// tp_rank p holds the experts [p·E/P, (p+1)·E/P) whole, and the adapters' parts of these.
  bool expert_parallel = false;
};

/// y of every tp_rank, [P] of [T, H], from the layer as one process would hold it.
///
/// default          w13: rows [p·I/P, (p+1)·I/P) of gate and of up, their A whole, B the same rows.
///                  w2: columns [p·I/P, ...), A the same columns, B whole. One all-reduce, of y.
/// fully_sharded    gate, up: A rows [p·Rs, (p+1)·Rs), Rs = R/P of the buffer, of which the adapter
///                  has clamp(r - p·Rs, 0, Rs), the rest zeros; all-gather of h along the rank.
///                  down: A columns as above; all-reduce of h; B rows [p·H/P, (p+1)·H/P), into
///                  these columns of the partial z. Router weights come after; all-reduce of y.
/// expert_parallel  the experts that are here; all-reduce of y.
///
/// Rounding  h goes through its collective in its buffer's dtype (fp32, or x's with store_as_x),
///           partial y in args.out.
/// Identity  y is that of P = 1: equal where every sum is exact.
/// Errors    InputError: those of moe_layer(); a size that P does not divide: I, fully_sharded
///           also H and R (not r), expert_parallel E; fully_sharded with expert_parallel;
///           expert_parallel with an expert_map.
/// Source    statements [3.16]-[3.18], [1.41]; vLLM lora/layers/fused_moe.py.
std::vector<Tensor> parallel_moe(const MoeArgs& args, const MoeLora* lora, const MoeParallel& how);

}  // namespace loratory::reference
