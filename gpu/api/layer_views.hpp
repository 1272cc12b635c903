#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "gpu/runtime/device_view.hpp"

// What LoraLayer asks of the views of its tensors.

namespace loratory::gpu {

inline constexpr int64_t kVectorBytes =
    16;  ///< one access of x, A, B, h and y by an aligned variant
inline constexpr int64_t kColumnsPerVec =
    8;  ///< of 16-bit numbers; an fp32 y takes two vectors for 8
inline constexpr int64_t kMostRanks = 512;         ///< h of so many fits in shared memory
inline constexpr int64_t kMostRanksOfEight = 768;  ///< the same, of eight tokens, beside 16-bit B

/// Ranks of a row of h in the workspace: rows begin at multiples of kVectorBytes.
inline int64_t h_row_size(int64_t max_rank) { return (max_rank + 3) / 4 * 4; }

/// Also of a view that says it has more axes than there are.
inline std::string shape_of_view(const DeviceView& view) {
  std::string out;
  for (int i = 0; i < std::min(view.num_axes, int(view.shape.size())); ++i) {
    out += fmt::format("{}{}", i == 0 ? "" : ", ", view.shape[size_t(i)]);
  }
  return "[" + out + "]";
}

/// Every row begins at a multiple of `bytes`.
inline bool has_aligned_rows(const DeviceView& view, int64_t bytes) {
  const int64_t elements = bytes / int64_t(size_bytes(view.dtype));
  bool ok = reinterpret_cast<uintptr_t>(view.data) % uintptr_t(bytes) == 0;
  for (int i = 0; i + 1 < view.num_axes; ++i) ok = ok && view.strides[size_t(i)] % elements == 0;
  return ok;
}
/// Every row begins at a multiple of eight numbers (8-bit: sixteen) and has a multiple of as many.
inline bool is_aligned(const DeviceView& view) {
  if (view.num_axes < 1 || view.num_axes > int(view.shape.size())) return false;
  const int64_t numbers = is_quantized(view.dtype) ? kVectorBytes : kColumnsPerVec;
  return has_aligned_rows(view, numbers * int64_t(size_bytes(view.dtype))) &&
         view.shape[size_t(view.num_axes - 1)] % numbers == 0;
}

}  // namespace loratory::gpu
