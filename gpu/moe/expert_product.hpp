#pragma once

#include "gpu/moe/group_views.hpp"
#include "gpu/plan/launch_order.hpp"
#include "gpu/runtime/device_view.hpp"

struct CUstream_st;

namespace loratory::gpu {

/// Products of the base experts: y[row, n] = sum_c W[e(row), n, c] · x[row / rows_per_x, c] for the
/// rows of groups by expert (ExpertGroups without slots), expert_linear() of
/// reference/moe/moe_layer.hpp. Rows in no group are neither read nor written.
///
/// Numbers  bf16 or f16, K and N multiples of 8, rows 16-byte aligned: fp32 sums on tensor cores,
///          rounded once to y. f32, any K and N: fused multiply-adds on CUDA cores, slow.
/// Bits     A sum is one chain of tensor-core steps of 16 numbers, c ascending from 0, as base
///          products of order exact (gpu/product/base_product.hpp) make it. A row's bits follow
///          from its x and its expert alone: not from T, its place, the size of segments or
///          neighbours.
/// Bound    product_error_bound() of gpu/product/product_bound.hpp.
/// Cost     A CTA streams 32 to 128 rows of W over all of K for 8, 32 or 64 rows of x. The sizes
///          are chosen from T·k and E alone, so a replayed graph would choose the same.
/// Not timed on its own.
struct ExpertProductArgs {
  DeviceView x{};          ///< [T, K], or [T·k, K] with rows_per_x = 1
  DeviceView weights{};    ///< [E, N, K], innermost stride 1
  DeviceView y{};          ///< [T·k, N]
  int32_t rows_per_x = 1;  ///< k where x is by token
};

/// The size of segments that a step of so many rows takes.
int32_t expert_product_segments(reference::Dtype dtype, int64_t num_rows, int64_t num_experts);

/// Never allocates, never waits, may be captured. With LaunchOrder::overlaps_previous the groups
/// must be older than the previous kernel.
/// Errors   InputError naming the argument; std::runtime_error: CUDA's name and text.
void expert_product(const ExpertProductArgs& args, const GroupViews& groups, CUstream_st* stream,
                    LaunchOrder order = LaunchOrder::after_previous);
/// With segments of this size, for tests.
void expert_product_of(int32_t segment_size, const ExpertProductArgs& args,
                       const GroupViews& groups, CUstream_st* stream,
                       LaunchOrder order = LaunchOrder::after_previous);

}  // namespace loratory::gpu
