#include "gpu/layout/device_segments.hpp"

#include <algorithm>
#include <cstring>

#include "gpu/runtime/cuda_check.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::gpu {
namespace {

constexpr size_t kCountBytes = sizeof(Segment);  // keeps the segments aligned

size_t segment_row_bytes(size_t num_segments) {
  return kCountBytes + num_segments * sizeof(Segment);
}
size_t token_row_bytes(size_t num_tokens) { return num_tokens * sizeof(int32_t); }

}  // namespace

DeviceSegments::DeviceSegments(int64_t max_tokens, int32_t max_loras, int32_t segment_size)
    : max_tokens_((check_segment_limits(max_tokens, max_loras, {&segment_size, 1}), max_tokens)),
      max_loras_(max_loras),
      max_segments_(int32_t(max_segments(max_tokens, max_loras, segment_size))) {
  list_.segment_size = segment_size;
  const size_t most =
      std::max(segment_row_bytes(size_t(max_segments_)), token_row_bytes(max_tokens));
  row_bytes_ = (most + 255) / 256 * 256;
  device_ = make_cleared_device_buffer(2 * row_bytes_);
  for (HostBuffer& host : host_) host.bytes = make_pinned_buffer(2 * row_bytes_);
}

void DeviceSegments::check(const reference::BatchLayout& layout) const {
  const size_t num_tokens = layout.token_indices_sorted.size();
  if (num_tokens > size_t(max_tokens_)) {
    throw InputError("segments", "the step has " + std::to_string(num_tokens) +
                                     " tokens, there is room for " + std::to_string(max_tokens_));
  }
  if (layout.active_lora_ids.size() > size_t(max_loras_) + 1) {
    throw InputError("segments", "the layout has more slots than there is room for");
  }
}

void DeviceSegments::upload(const reference::BatchLayout& layout, CUstream_st* stream) {
  check(layout);
  build(layout, list_.segment_size, list_);
  HostBuffer& host = host_[next_];
  next_ = (next_ + 1) % kNumHostBuffers;
  LORATORY_CUDA_CHECK(cudaEventSynchronize(host.copied.get()));  // usually long past
  const auto num_segments = int32_t(list_.segments.size());
  const size_t segments_end = segment_row_bytes(list_.segments.size());
  const size_t tokens_end = token_row_bytes(layout.token_indices_sorted.size());
  std::byte* const from = host.bytes.get();
  std::memcpy(from, &num_segments, sizeof(num_segments));
  std::memcpy(from + kCountBytes, list_.segments.data(), segments_end - kCountBytes);
  std::memcpy(from + row_bytes_, layout.token_indices_sorted.data(), tokens_end);
  LORATORY_CUDA_CHECK(cudaMemcpy2DAsync(device_.get(), row_bytes_, from, row_bytes_,
                                        std::max(segments_end, tokens_end), 2,
                                        cudaMemcpyHostToDevice, stream));
  LORATORY_CUDA_CHECK(cudaEventRecord(host.copied.get(), stream));
}

SegmentView DeviceSegments::view() const {
  std::byte* const from = device_.get();
  return {.num_segments = reinterpret_cast<const int32_t*>(from),
          .segments = reinterpret_cast<const Segment*>(from + kCountBytes),
          .token_indices = reinterpret_cast<const int32_t*>(from + row_bytes_),
          .segment_size = list_.segment_size,
          .max_segments = max_segments_};
}

}  // namespace loratory::gpu
