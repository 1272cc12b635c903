#pragma once

#include "gpu/plan/launch_order.hpp"
#include "gpu/runtime/device_view.hpp"

struct CUstream_st;

namespace loratory::gpu {

/// SwiGLU: y_i = round(silu(gate_i) · up_i), silu(g) = g / (1 + e^-g), in fp32. gate_up [T, 2·I]
/// holds gate and, behind it, up; y is [T, I] of the same dtype (f32, f16, bf16).
/// Error    docs/error_bounds.md, "The kernels of a model". A gate below -87 gives ±0, or a number
///          as close to it.
/// Errors   InputError: dtypes, shapes, strides. std::runtime_error: CUDA's name and text.
/// Source   Shazeer 2020 (GLU variants).
void silu_mul(const DeviceView& gate_up, const DeviceView& y, CUstream_st* stream,
              LaunchOrder order = LaunchOrder::after_previous);

/// The activation of gpt-oss: y_i = round((u + 1) · g / (1 + e^(-1.702 g))), g = min(gate_i, 7),
/// u = min(max(up_i, -7), 7). Columns of gate_up [T, 2·I] alternate: gate_0, up_0, gate_1, ... NaN
/// stays. All else as silu_mul().
/// Source   statements [1.33], [1.39]; transformers GptOssExperts.
void gpt_oss_mul(const DeviceView& gate_up, const DeviceView& y, CUstream_st* stream,
                 LaunchOrder order = LaunchOrder::after_previous);

}  // namespace loratory::gpu
