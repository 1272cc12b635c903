#pragma once

#include <cstddef>
#include <cstdint>

#include "reference/adapter/adapter.hpp"

namespace loratory::gpu {

/// A or B of an adapter in f8_e4m3fn, row i at out + i · row_size. Returns its factor.
///
/// The bits and the factor of reference::fp8_a(), which is what it is tested against.
/// Numbers of `stored` are finite, as a loader has seen to.   Cost  a few nanoseconds each number.
float write_fp8(const reference::ConstTensorView& stored, const reference::WeightScale& scale,
                int64_t row_size, std::byte* out);

}  // namespace loratory::gpu
