#include "gpu/layout/device_segments.hpp"

#include <cstring>

#include "gpu/runtime/cuda_check.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::gpu {

void DeviceSegments::EventFree::operator()(void* event) const {
  cudaEventDestroy(static_cast<cudaEvent_t>(event));
}

DeviceSegments::DeviceSegments(int64_t max_tokens, int32_t max_loras, int32_t segment_size)
    : max_tokens_(max_tokens),
      max_loras_(max_loras),
      max_segments_(max_segments(max_tokens, max_loras, segment_size)) {
  list_.segment_size = segment_size;
  device_ = make_device_buffer(num_bytes());
  host_ = make_pinned_buffer(num_bytes());
  cudaEvent_t event = nullptr;
  LORATORY_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  copied_.reset(event);
}

void DeviceSegments::upload(const reference::BatchLayout& layout, CUstream_st* stream) {
  const size_t num_tokens = layout.token_indices_sorted.size();
  if (num_tokens > size_t(max_tokens_)) {
    throw InputError("segments", "the step has " + std::to_string(num_tokens) +
                                     " tokens, there is room for " + std::to_string(max_tokens_));
  }
  if (layout.active_lora_ids.size() > size_t(max_loras_) + 1) {
    throw InputError("segments", "the layout has more slots than there is room for");
  }
  build(layout, list_.segment_size, list_);
  const auto event = static_cast<cudaEvent_t>(copied_.get());
  LORATORY_CUDA_CHECK(cudaEventSynchronize(event));  // host_ is free again
  std::byte* const to = host_.get();
  const auto count = int32_t(list_.segments.size());
  std::memcpy(to, list_.segments.data(), list_.segments.size() * sizeof(Segment));
  std::memcpy(to + tokens_offset(), layout.token_indices_sorted.data(), num_tokens * 4);
  std::memcpy(to + count_offset(), &count, 4);
  LORATORY_CUDA_CHECK(
      cudaMemcpyAsync(device_.get(), to, num_bytes(), cudaMemcpyHostToDevice, stream));
  LORATORY_CUDA_CHECK(cudaEventRecord(event, stream));
}

SegmentView DeviceSegments::view() const {
  std::byte* const from = device_.get();
  return {.num_segments = reinterpret_cast<const int32_t*>(from + count_offset()),
          .segments = reinterpret_cast<const Segment*>(from),
          .token_indices = reinterpret_cast<const int32_t*>(from + tokens_offset()),
          .segment_size = list_.segment_size};
}

}  // namespace loratory::gpu
