#pragma once

#include "gpu/layout/segments.hpp"
#include "gpu/runtime/device_buffer.hpp"

struct CUstream_st;

namespace loratory::gpu {

/// The segments of a step in device memory that stays where it is: a captured graph reads whatever
/// the last upload() before its replay brought.
class DeviceSegments {
 public:
  /// Room for the largest step. Errors  std::runtime_error from CUDA.
  DeviceSegments(int64_t max_tokens, int32_t max_loras, int32_t segment_size);

  /// Builds the list and copies it behind what the stream already holds. All of it is written, so
  /// nothing of an earlier step is left. The next upload() waits for this one's copy to end.
  /// Errors   InputError: more tokens or slots than there is room for.
  void upload(const reference::BatchLayout& layout, CUstream_st* stream);

  SegmentView view() const;

 private:
  struct EventFree {
    void operator()(void* event) const;
  };

  int64_t max_tokens_;
  int32_t max_loras_;
  int64_t max_segments_;
  SegmentList list_;
  DeviceBuffer device_;  // [segments][token indices][count], one copy
  PinnedBuffer host_;
  std::unique_ptr<void, EventFree> copied_;

  size_t tokens_offset() const { return size_t(max_segments_) * sizeof(Segment); }
  size_t count_offset() const { return tokens_offset() + size_t(max_tokens_) * 4; }
  size_t num_bytes() const { return count_offset() + 4; }
};

}  // namespace loratory::gpu
