#pragma once

#include <array>

#include "gpu/layout/segments.hpp"
#include "gpu/runtime/cuda_handles.hpp"
#include "gpu/runtime/device_buffer.hpp"

struct CUstream_st;

namespace loratory::gpu {

/// The segments of a step in device memory that stays where it is: a captured graph reads whatever
/// the last upload() before its replay brought.
class DeviceSegments {
 public:
  /// Uploads that may be in flight at once: the host runs a step or two ahead of the GPU.
  static constexpr size_t kNumHostBuffers = 4;

  /// Room for the largest step.
  /// Errors   InputError as check_segment_limits(); std::runtime_error from CUDA.
  DeviceSegments(int64_t max_tokens, int32_t max_loras, int32_t segment_size);

  /// Builds the list and copies the used part of it, in stream order. Past num_segments and the
  /// tokens of this step lie those of an earlier one; nothing reads them.
  /// Waits only if the GPU has yet to copy what was uploaded kNumHostBuffers calls ago. Must not be
  /// captured: a replay would copy what the host's buffer holds by then.
  /// Errors   InputError: more tokens or slots than there is room for.
  /// Cost     O(T + L) on the host, one copy of 2 * max(16 + 16 * num_segments, 4 * T) bytes.
  void upload(const reference::BatchLayout& layout, CUstream_st* stream);

  SegmentView view() const;

 private:
  /// What one upload copies from, and the event that ends the copy.
  struct HostBuffer {
    PinnedBuffer bytes;
    Event copied = make_event();
  };

  void check(const reference::BatchLayout& layout) const;

  int64_t max_tokens_;
  int32_t max_loras_;
  int32_t max_segments_;
  SegmentList list_;
  size_t row_bytes_;  // two rows, segments and token indices: one copy takes the front of both
  DeviceBuffer device_;
  std::array<HostBuffer, kNumHostBuffers> host_;
  size_t next_ = 0;  // of host_
};

}  // namespace loratory::gpu
