#pragma once

#include <cstdint>
#include <vector>

#include "gpu/model/batch_view.hpp"
#include "gpu/model/kv_view.hpp"
#include "gpu/plan/launch_order.hpp"
#include "gpu/runtime/device_view.hpp"
#include "reference/model/model_config.hpp"

struct CUstream_st;

namespace loratory::gpu {

/// cos and sin of the angles of positions 0 .. num_positions - 1, [num_positions, head_dim / 2]:
/// those of reference/model/rope.hpp in float64, with the attention factor, rounded once to fp32.
struct RopeTables {
  std::vector<float> cos, sin;
};
/// Errors   InputError: more positions than rope.hpp allows.
RopeTables make_rope_tables(const reference::RopeConfig& config, int64_t head_dim,
                            int64_t num_positions);

struct RotaryArgs {
  DeviceView qkv;  ///< [T, (num_heads + 2·kv.kv_heads)·head_dim]: q, k, v of each token
  int32_t num_heads = 0;
  DeviceView cos, sin;                              ///< f32 [num_positions, head_dim / 2]
  const void *q_norm = nullptr, *k_norm = nullptr;  ///< [head_dim] of qkv's dtype, or both null
  double eps = 0;                                   ///< of the norms
  KvView kv;
};

/// What comes between the product qkv and attention: RMSNorm on each head of q and k, where the
/// model has one; then pair (i, i + head_dim/2) of q and k turns by position · f_i. q is written in
/// place, k and v into the row's KV blocks. In fp32, rounded once, when it is written; v is copied.
/// Padding tokens read and write nothing, k and v of qkv stay as they are.
/// Order    If it overlaps the kernel before it, it reads batch, tables and norms early: no kernel
///          that may still run then may write them.
/// Limits   head_dim even, at most 1024; positions below num_positions, blocks of the table inside
///          the pool: not checked. 16, 32, 64, 128 and 256 have a fast kernel, for which qkv, norms
///          and tables are aligned to 16 bytes. All others have one for tests: a thread a head.
/// Error    docs/error_bounds.md, "The kernels of a model".
/// Errors   InputError: dtypes, shapes, alignment. std::runtime_error: CUDA's name and text.
void rotary(const BatchView& batch, const RotaryArgs& args, CUstream_st* stream,
            LaunchOrder order = LaunchOrder::after_previous);

}  // namespace loratory::gpu
