#pragma once

#include <cstdint>

#include "gpu/model/batch_view.hpp"
#include "gpu/plan/launch_order.hpp"
#include "gpu/runtime/device_view.hpp"

struct CUstream_st;

namespace loratory::gpu {

struct EmbedArgs {
  DeviceView table;  ///< [vocab, hidden]
  DeviceView x;      ///< [T, hidden], the same dtype
  /// [T] on the device or null: the ids themselves, those of the step before looked up; -1 for
  /// padding.
  int32_t* ids = nullptr;
};

/// x[t] = table[id of token t], copied. Padding, and an id outside the table, gives zeros.
/// Errors   InputError: dtypes, shapes, strides. std::runtime_error: CUDA's name and text.
void embed(const BatchView& batch, const EmbedArgs& args, CUstream_st* stream,
           LaunchOrder order = LaunchOrder::after_previous);

}  // namespace loratory::gpu
