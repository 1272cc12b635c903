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

}  // namespace loratory::gpu
