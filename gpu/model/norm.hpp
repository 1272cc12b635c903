#pragma once

#include <cstdint>

#include "gpu/plan/launch_order.hpp"
#include "gpu/runtime/device_view.hpp"

struct CUstream_st;

namespace loratory::gpu {

/// RMSNorm of rows: y = round(weight_i · (x_i · s)), s = 1 / sqrt(sum of x_i² / hidden + eps).
/// x, weight and y are of one dtype (f32, f16, bf16); x [rows, hidden], weight [hidden]; strides of
/// the innermost axis are 1.
struct RmsNormArgs {
  DeviceView x, weight, y;
  double eps = 0;  ///< rounded to fp32
  /// On the device, [y.shape[0]], or null: row i of y is of row rows[i] of x, zeros if that is -1.
  const int32_t* rows = nullptr;
};

/// Order    in fp32, one order for each `hidden`: neither the number of rows, nor where a row lies,
///          nor its alignment changes a bit.
/// Error    docs/error_bounds.md, "The kernels of a model".
/// Errors   InputError: dtypes, shapes, strides. std::runtime_error: CUDA's name and text.
/// Cost     reads x once and writes y; nothing is kept between launches.
/// Source   Zhang and Sennrich 2019; transformers, LlamaRMSNorm, without its rounding before the
///          weight.
void rms_norm(const RmsNormArgs& args, CUstream_st* stream,
              LaunchOrder order = LaunchOrder::after_previous);

/// x = round(x + delta), then its norm. x is written in place, unless `rows` chooses from it: then
/// it stays as it is. delta has x's shape and dtype.
void add_rms_norm(const RmsNormArgs& args, const DeviceView& delta, CUstream_st* stream,
                  LaunchOrder order = LaunchOrder::after_previous);

}  // namespace loratory::gpu
