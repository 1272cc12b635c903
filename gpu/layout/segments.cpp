#include "gpu/layout/segments.hpp"

#include <algorithm>

#include "reference/base/input_error.hpp"

namespace loratory::gpu {
namespace {

constexpr int64_t kMost = int64_t{1} << 30;  // tokens, and slots

void check_size(int32_t segment_size) {
  if (segment_size < 1) throw InputError("segment_size", "must be at least 1");
}

}  // namespace

void check_segment_limits(int64_t max_tokens, int32_t max_loras,
                          std::span<const int32_t> segment_sizes) {
  if (max_tokens < 0 || max_tokens > kMost) throw InputError("max_tokens", "must be 0 to 2^30");
  if (max_loras < 1 || max_loras > kMost) throw InputError("max_loras", "must be 1 to 2^30");
  for (const int32_t size : segment_sizes) check_size(size);
}

int64_t max_segments(int64_t num_tokens, int32_t max_loras, int32_t segment_size) {
  check_size(segment_size);
  return std::min(num_tokens, num_tokens / segment_size + max_loras);
}

void build(const reference::BatchLayout& layout, int32_t segment_size, SegmentList& list) {
  check_size(segment_size);
  list.segment_size = segment_size;
  list.segments.clear();
  for (size_t i = 0; i < layout.active_lora_ids.size(); ++i) {
    const int32_t slot = layout.active_lora_ids[i];
    if (slot < 0) continue;  // base tokens, or padding of the list
    const int32_t begin = layout.lora_token_start_loc[i];
    const int32_t end = begin + layout.num_tokens_per_lora[i];
    for (int32_t first = begin; first < end; first += segment_size) {
      list.segments.push_back({slot, first, std::min(segment_size, end - first), 0});
    }
  }
}

}  // namespace loratory::gpu
