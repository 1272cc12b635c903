// The metadata of a step on a GPU, uploaded or built there, against the host's builder; skipped
// without a GPU. What is compared is what a kernel may read: counts, segments, token indices.
#include "gpu/layout/device_segments.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <future>

#include "captured_graph.hpp"
#include "fuzz/support/draw.hpp"
#include "gpu/layout/device_segment_builder.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "gpu/runtime/cuda_handles.hpp"
#include "reference/base/input_error.hpp"
#include "suite.hpp"

namespace loratory::gpu {
namespace {

using reference::BatchLayout;
using reference::make_batch_layout;

constexpr int32_t kSizes[] = {8, 32, 3};
constexpr const char* kPopularities[] = {"zipf", "uniform", "identical", "distinct", "base"};

/// slots[t] under a popularity; an eighth of the tokens (but of "distinct") are base tokens.
std::vector<int32_t> mapping(std::string_view popularity, int64_t num_tokens, int32_t max_loras,
                             uint64_t seed) {
  sim::Draw draw(seed);
  std::vector<int32_t> slots;
  for (int64_t t = 0; t < num_tokens; ++t) {
    int64_t slot = draw(max_loras);
    if (popularity == "zipf") slot = int64_t(std::pow(max_loras, double(slot) / max_loras)) - 1;
    if (popularity == "identical") slot = max_loras - 1;
    if (popularity == "distinct") slot = max_loras - 1 - t % max_loras;
    if (popularity == "base" || (popularity != "distinct" && draw.one_in(8))) slot = -1;
    slots.push_back(int32_t(slot));
  }
  return slots;
}

template <typename T>
std::vector<T> read(const T* device, size_t count) {
  std::vector<T> values(count);
  LORATORY_CUDA_CHECK(cudaMemcpy(values.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost));
  return values;
}

/// Whether a kernel that reads `view` sees this layout.
void expect_shows(const SegmentView& view, const BatchLayout& layout) {
  SegmentList expected;
  build(layout, view.segment_size, expected);
  ASSERT_EQ(read(view.num_segments, 1)[0], int32_t(expected.segments.size()));
  EXPECT_TRUE(read(view.segments, expected.segments.size()) == expected.segments);
  const auto& tokens = layout.token_indices_sorted;
  EXPECT_TRUE(read(view.token_indices, tokens.size()) == tokens);
}

/// A mapping in device memory.
class DeviceMapping {
 public:
  explicit DeviceMapping(int64_t max_tokens)
      : buffer_(make_device_buffer(size_t(max_tokens) * 4)) {}
  const int32_t* write(const std::vector<int32_t>& slots) {
    LORATORY_CUDA_CHECK(
        cudaMemcpy(buffer_.get(), slots.data(), slots.size() * 4, cudaMemcpyHostToDevice));
    return data();
  }
  const int32_t* data() const { return reinterpret_cast<const int32_t*>(buffer_.get()); }

 private:
  DeviceBuffer buffer_;
};

void wait(const Stream& stream) { LORATORY_CUDA_CHECK(cudaStreamSynchronize(stream.get())); }

/// Overwrites everything that a build of so many tokens may write, counts included.
void fill_with_garbage(const DeviceSegmentBuilder& builder, int64_t max_tokens, int32_t max_loras) {
  const auto fill = [](const void* device, int64_t num_bytes) {
    LORATORY_CUDA_CHECK(cudaMemset(const_cast<void*>(device), 0xA5, size_t(num_bytes)));
  };
  for (const int32_t size : kSizes) {
    const SegmentView view = builder.view(size);
    fill(view.num_segments, 4);
    fill(view.segments, max_segments(max_tokens, max_loras, size) * int64_t(sizeof(Segment)));
    fill(view.token_indices, max_tokens * 4);
  }
}

class DeviceSegmentsOnGpu : public OnGpu {};
using SegmentBuilderOnGpu = DeviceSegmentsOnGpu;

// [2.1] [2.2] [2.18] P70: whatever the arrays held before.
TEST_F(SegmentBuilderOnGpu, BuildsWhatTheHostBuilds) {
  int num_cases = 0;
  for (const int32_t max_loras : {1, 2, 64, 1023, 1024, 1900}) {
    for (const int64_t num_tokens :
         {0, 1, 2, 31, 32, 33, 256, 1000, 1023, 1024, 1025, 2048, 8192, 65536}) {
      const DeviceSegmentBuilder builder(num_tokens, max_loras, kSizes);
      DeviceMapping on_gpu(num_tokens);
      for (const char* const popularity : kPopularities) {
        SCOPED_TRACE(fmt::format("{} slots, {} tokens, {}", max_loras, num_tokens, popularity));
        const auto slots = mapping(popularity, num_tokens, max_loras, uint64_t(++num_cases));
        fill_with_garbage(builder, num_tokens, max_loras);
        builder.build(on_gpu.write(slots), num_tokens, nullptr);
        const BatchLayout layout = make_batch_layout(slots, max_loras);
        for (const int32_t size : kSizes) expect_shows(builder.view(size), layout);
        ASSERT_EQ(read(builder.num_bad_entries(), 1)[0], 0);
        ASSERT_FALSE(HasFailure());
      }
    }
  }
  record_.num_cases = num_cases;
}

TEST_F(SegmentBuilderOnGpu, HasRoomFor2000Slots) {
  const DeviceSegmentBuilder builder(8192, 2000, std::span(kSizes).first(2));
  DeviceMapping on_gpu(8192);
  for (const char* const popularity : kPopularities) {
    const auto slots = mapping(popularity, 8192, 2000, 1);
    builder.build(on_gpu.write(slots), 8192, nullptr);
    expect_shows(builder.view(8), make_batch_layout(slots, 2000));
    expect_shows(builder.view(32), make_batch_layout(slots, 2000));
  }
}

// What is no slot is a base token, is counted, and harms nobody.
TEST_F(SegmentBuilderOnGpu, TakesBadEntriesForBaseTokens) {
  constexpr int32_t kLoras = 5;
  for (const int64_t num_tokens : {7, 1024, 5000}) {
    auto slots = mapping("uniform", num_tokens, kLoras, 3);
    auto expected = slots;
    int64_t num_bad = 0;
    for (size_t t = 0; t < slots.size(); t += 3) {
      constexpr int32_t kBad[] = {-2, kLoras, INT_MIN, INT_MAX};
      slots[t] = kBad[t / 3 % 4];
      expected[t] = -1;
      ++num_bad;
    }
    const DeviceSegmentBuilder builder(num_tokens, kLoras, kSizes);
    DeviceMapping on_gpu(num_tokens);
    on_gpu.write(slots);
    for (int64_t times = 1; times <= 2; ++times) {
      builder.build(on_gpu.data(), num_tokens, nullptr);
      expect_shows(builder.view(8), make_batch_layout(expected, kLoras));
      EXPECT_EQ(read(builder.num_bad_entries(), 1)[0], times * num_bad);
    }
  }
}

// P67, P68, P70: captured with one mapping, replayed with bigger and smaller ones, of more slots
// and of none, with as many tokens as the device says.
TEST_F(SegmentBuilderOnGpu, FollowsTheMappingInACapturedGraph) {
  constexpr int64_t kTokens = 3000;
  constexpr int32_t kLoras = 300;
  const DeviceSegmentBuilder builder(kTokens, kLoras, kSizes);
  DeviceMapping on_gpu(kTokens), num_used(1);
  on_gpu.write(mapping("identical", kTokens, kLoras, 0));
  const CapturedGraph graph(
      [&](cudaStream_t stream) { builder.build(on_gpu.data(), kTokens, stream, num_used.data()); });
  sim::Draw draw(9);
  int64_t num_bad = 0;
  for (uint64_t step = 0; step < 60; ++step) {
    const int64_t used =
        draw.one_of<int64_t>({0, 1, 900, 1024, 1025, 2048, kTokens, draw(kTokens)});
    auto slots = mapping(kPopularities[step % 5], used, kLoras, step);
    const BatchLayout layout = make_batch_layout(slots, kLoras);
    slots.resize(kTokens, 0x5A5A5A5A);  // not read
    on_gpu.write(slots);
    num_used.write({int32_t(used)});
    if (step % 2 == 0) fill_with_garbage(builder, kTokens, kLoras);
    graph.replay();
    SCOPED_TRACE(fmt::format("step {}, {} tokens", step, used));
    for (const int32_t size : kSizes) expect_shows(builder.view(size), layout);
    ASSERT_FALSE(HasFailure());
  }
  const auto slots = mapping("uniform", kTokens, kLoras, 1);
  on_gpu.write(slots);
  for (const int32_t beyond : {int32_t(kTokens) + 1, INT_MAX, -1}) {
    num_used.write({beyond});
    graph.replay();
    expect_shows(builder.view(8),
                 make_batch_layout(beyond < 0 ? std::vector<int32_t>{} : slots, kLoras));
    EXPECT_EQ(read(builder.num_bad_entries(), 1)[0], ++num_bad);
  }
}

// The same bytes, each time.
// The default stream has tens of milliseconds of work, and what clears a new builder is behind it.
TEST_F(SegmentBuilderOnGpu, IsClearedBeforeAnotherStreamBuilds) {
  constexpr size_t kBytes = size_t(1) << 30;
  constexpr int64_t kTokens = 100;
  constexpr int32_t kMaxLoras = 8;
  const std::vector<int32_t> slots = mapping("uniform", kTokens, kMaxLoras, 1);
  DeviceMapping at(kTokens);
  const int32_t* const on_device = at.write(slots);
  const DeviceBuffer other = make_device_buffer(kBytes);
  const Stream stream = make_stream();
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  for (int i = 0; i < 64; ++i) LORATORY_CUDA_CHECK(cudaMemset(other.get(), i, kBytes));
  const DeviceSegmentBuilder builder(kTokens, kMaxLoras, kSizes);
  builder.build(on_device, kTokens, stream.get());
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  for (const int32_t size : kSizes) {
    expect_shows(builder.view(size), make_batch_layout(slots, kMaxLoras));
  }
  record_.num_cases = 1;
}

TEST_F(SegmentBuilderOnGpu, RepeatsToTheByte) {
  constexpr int64_t kTokens = 8192;
  const DeviceSegmentBuilder builder(kTokens, 1000, kSizes);
  DeviceMapping on_gpu(kTokens);
  const BatchLayout layout = make_batch_layout(mapping("zipf", kTokens, 1000, 4), 1000);
  on_gpu.write(layout.token_lora_mapping);
  for (int i = 0; i < 100; ++i) {
    fill_with_garbage(builder, kTokens, 1000);
    builder.build(on_gpu.data(), kTokens, nullptr);
    expect_shows(builder.view(8), layout);
    ASSERT_FALSE(HasFailure()) << "repeat " << i;
  }
}

TEST_F(SegmentBuilderOnGpu, RefusesWhatItHasNoRoomFor) {
  EXPECT_THROW(DeviceSegmentBuilder(-1, 1, kSizes), InputError);
  EXPECT_THROW(DeviceSegmentBuilder(1, 0, kSizes), InputError);
  EXPECT_THROW(DeviceSegmentBuilder(1, 100'000, kSizes), InputError);
  EXPECT_THROW(DeviceSegmentBuilder(1, 1, {}), InputError);
  EXPECT_THROW(DeviceSegmentBuilder(1, 1, std::vector<int32_t>{8, 0}), InputError);
  EXPECT_THROW(DeviceSegmentBuilder(1, 1, std::vector<int32_t>(4, 8)), InputError);
  const DeviceSegmentBuilder builder(10, 1, kSizes);
  const DeviceMapping on_gpu(11);
  EXPECT_THROW(builder.build(on_gpu.data(), 11, nullptr), InputError);
  EXPECT_THROW(builder.build(nullptr, 1, nullptr), InputError);
  EXPECT_THROW(builder.view(16), InputError);
}

/// Holds a stream's work back until release().
class Gate {
 public:
  explicit Gate(cudaStream_t stream) {
    LORATORY_CUDA_CHECK(cudaLaunchHostFunc(
        stream, [](void* self) { static_cast<Gate*>(self)->open_.get_future().wait(); }, this));
  }
  void release() { open_.set_value(); }

 private:
  std::promise<void> open_;
};

// P70: a GPU that is behind still gets each step's own list, and the host does not wait for it:
// were it to, this test would hang, since the gate opens after the last upload.
TEST_F(DeviceSegmentsOnGpu, UploadsAheadOfTheGpu) {
  constexpr int64_t kTokens = 1000;
  constexpr int32_t kLoras = 50;
  DeviceSegments segments(kTokens, kLoras, 8);
  std::vector<BatchLayout> layouts;
  std::vector<DeviceBuffer> seen;
  for (size_t i = 0; i < DeviceSegments::kNumHostBuffers; ++i) {
    const int64_t num_tokens = kTokens - 200 * int64_t(i);
    layouts.push_back(make_batch_layout(mapping("zipf", num_tokens, kLoras, i), kLoras));
    seen.push_back(make_device_buffer(kTokens * 4));
  }
  const Stream stream = make_stream();
  Gate gate(stream.get());
  for (size_t i = 0; i < layouts.size(); ++i) {
    segments.upload(layouts[i], stream.get());
    LORATORY_CUDA_CHECK(cudaMemcpyAsync(seen[i].get(), segments.view().token_indices, kTokens * 4,
                                        cudaMemcpyDeviceToDevice, stream.get()));
  }
  gate.release();
  wait(stream);
  expect_shows(segments.view(), layouts.back());
  for (size_t i = 0; i < seen.size(); ++i) {
    const auto& tokens = layouts[i].token_indices_sorted;
    EXPECT_TRUE(read(reinterpret_cast<const int32_t*>(seen[i].get()), tokens.size()) == tokens);
  }
}

// P70: steps of any size behind each other, with more uploads than there are buffers.
TEST_F(DeviceSegmentsOnGpu, ShowTheLastUpload) {
  constexpr int32_t kLoras = 2000;
  DeviceSegments segments(8192, kLoras, 8);
  EXPECT_EQ(segments.view().max_segments, max_segments(8192, kLoras, 8));
  sim::Draw draw(5);
  for (uint64_t step = 0; step < 40; ++step) {
    const int64_t num_tokens = draw.one_of<int64_t>({0, 1, 8192, draw(100), draw(8192)});
    const BatchLayout layout =
        make_batch_layout(mapping(kPopularities[step % 5], num_tokens, kLoras, step), kLoras);
    segments.upload(layout, nullptr);
    SCOPED_TRACE(fmt::format("step {}, {} tokens", step, num_tokens));
    expect_shows(segments.view(), layout);
  }
  EXPECT_THROW(segments.upload(make_batch_layout(std::vector<int32_t>(8193, 0), 1), nullptr),
               InputError);
}

}  // namespace
}  // namespace loratory::gpu
