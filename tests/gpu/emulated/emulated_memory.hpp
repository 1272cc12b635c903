#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#include "gpu/layout/segments.hpp"
#include "gpu/runtime/device_view.hpp"
#include "reference/layout/batch_layout.hpp"
#include "reference/numerics/tensor.hpp"

namespace loratory::gpu::emulated {

/// Lies around each tensor; asynchronous copies of it throw.
inline constexpr std::byte kCanary{0xC1};

/// Memory of the emulated GPU: as aligned as cudaMalloc's, with canaries around each tensor.
class Memory {
 public:
  DeviceView put(const reference::Tensor& t) {
    const size_t size = t.bytes().size();
    DeviceView out{.dtype = t.dtype(), .data = room(size), .num_axes = int(t.shape().size())};
    std::ranges::copy(t.bytes(), static_cast<std::byte*>(out.data));  // of nothing too
    for (size_t i = 0; i < t.shape().size(); ++i) {
      out.shape[i] = t.shape()[i], out.strides[i] = t.strides()[i];
    }
    return out;
  }
  std::byte* room(size_t size) {
    auto& block = blocks_.emplace_back(size);
    return block.begin();
  }
  std::byte* zeros(size_t size) {
    std::byte* const out = room(size);
    std::memset(out, 0, size);
    return out;
  }
  static void get(const DeviceView& view, reference::Tensor& out) {
    const auto* const from = static_cast<const std::byte*>(view.data);
    std::copy_n(from, out.bytes().size(), out.bytes().data());
  }
  bool is_intact() const {
    return std::ranges::all_of(blocks_, [](const Block& b) { return b.is_intact(); });
  }

 private:
  static constexpr size_t kGuard = 256;
  struct Block {
    size_t size;
    std::vector<std::byte> bytes;
    explicit Block(size_t num) : size(num), bytes(num + 3 * kGuard, kCanary) {
      std::memset(begin(), 0xFF, size);
    }
    std::byte* begin() {
      const auto at = reinterpret_cast<uintptr_t>(bytes.data()) + kGuard;
      return bytes.data() + ((at + kGuard - 1) / kGuard * kGuard - at + kGuard);
    }
    bool is_intact() const {
      const std::byte* const from = const_cast<Block*>(this)->begin();
      const auto is_canary = [](std::byte b) { return b == kCanary; };
      return std::all_of(bytes.data(), from, is_canary) &&
             std::all_of(from + size, bytes.data() + bytes.size(), is_canary);
    }
  };
  std::deque<Block> blocks_;
};

/// The segments of a batch.
struct Segments {
  SegmentList list;
  reference::BatchLayout layout;
  int32_t count = 0;

  Segments(const std::vector<int32_t>& slots, int64_t max_loras, int32_t size)
      : layout(reference::make_batch_layout(slots, int32_t(max_loras))) {
    build(layout, size, list);
    count = int32_t(list.segments.size());
  }
  SegmentView view() {
    list.segments.reserve(1), layout.token_indices_sorted.reserve(1);  // not null
    return {.num_segments = &count,
            .segments = list.segments.data(),
            .token_indices = layout.token_indices_sorted.data(),
            .segment_size = list.segment_size};
  }
};

}  // namespace loratory::gpu::emulated
