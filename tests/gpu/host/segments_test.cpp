// The work list of LoRA kernels.
#include "gpu/layout/segments.hpp"

#include <gmock/gmock.h>

#include <algorithm>

#include "reference/base/input_error.hpp"
#include "tests/gpu/host/error_of.hpp"

namespace loratory::gpu {
namespace {

using testing::ElementsAre;

SegmentList segments_of(const std::vector<int32_t>& slots, int32_t max_loras, int32_t size) {
  SegmentList list;
  list.segments.assign(7, {9, 9, 9, 9});  // of an earlier step
  build(reference::make_batch_layout(slots, max_loras), size, list);
  return list;
}

// Base tokens are first in the sorted order and in no segment.
TEST(Segments, CutTheTokensOfEachSlot) {
  const SegmentList list = segments_of({1, -1, 1, 0, 1, -1}, 3, 2);
  EXPECT_THAT(list.segments,
              ElementsAre(Segment{0, 2, 1, 0}, Segment{1, 3, 2, 0}, Segment{1, 5, 1, 0}));
  EXPECT_EQ(list.segment_size, 2);
}

TEST(Segments, OfBaseTokensAreNone) {
  EXPECT_TRUE(segments_of({-1, -1}, 2, 8).segments.empty());
  EXPECT_TRUE(segments_of({}, 2, 8).segments.empty());
}

// Every token with an adapter once, and never more segments than there is room for.
TEST(Segments, CoverEveryToken) {
  for (const int32_t size : {1, 3, 8, 32, 64}) {
    for (const int32_t max_loras : {1, 5, 40}) {
      std::vector<int32_t> slots;
      for (int32_t t = 0; t < 100; ++t) slots.push_back(t * t % (max_loras + 1) - 1);
      const reference::BatchLayout layout = reference::make_batch_layout(slots, max_loras);
      SegmentList list;
      build(layout, size, list);
      EXPECT_LE(int64_t(list.segments.size()), max_segments(100, max_loras, size));
      std::vector<int> seen(slots.size(), 0);
      for (const Segment& s : list.segments) {
        EXPECT_GE(s.num_tokens, 1);
        EXPECT_LE(s.num_tokens, size);
        for (int32_t i = s.first; i < s.first + s.num_tokens; ++i) {
          const int32_t token = layout.token_indices_sorted[size_t(i)];
          EXPECT_EQ(slots[size_t(token)], s.slot);
          ++seen[size_t(token)];
        }
      }
      for (size_t t = 0; t < slots.size(); ++t) EXPECT_EQ(seen[t], slots[t] >= 0 ? 1 : 0);
    }
  }
}

// What an expand does to a list of a multiple of its own size gives the list of that size.
TEST(Segments, OfAMultipleAreThoseOfTheSize) {
  std::vector<int32_t> slots;
  for (int32_t t = 0; t < 300; ++t) slots.push_back(t % 7 == 0 ? -1 : t % 7 % 3);
  const std::vector<Segment> expected = segments_of(slots, 3, 8).segments;
  for (const int32_t size : {16, 32, 64}) {
    std::vector<Segment> cut;
    for (const Segment& s : segments_of(slots, 3, size).segments) {
      for (int32_t i = 0; i < s.num_tokens; i += 8) {
        cut.push_back({s.slot, s.first + i, std::min(8, s.num_tokens - i), 0});
      }
    }
    EXPECT_EQ(cut, expected) << size;
  }
}

TEST(Segments, HaveLimits) {
  const auto error = [](int64_t max_tokens, int32_t max_loras, std::vector<int32_t> sizes) {
    return error_of([&] { check_segment_limits(max_tokens, max_loras, sizes); });
  };
  EXPECT_EQ(error(0, 1, {8}), "");
  EXPECT_EQ(error(int64_t{1} << 30, 1 << 30, {8, 64}), "");
  EXPECT_EQ(error(-1, 1, {8}), "max_tokens: must be 0 to 2^30");
  EXPECT_EQ(error((int64_t{1} << 30) + 1, 1, {8}), "max_tokens: must be 0 to 2^30");
  EXPECT_EQ(error(1, 0, {8}), "max_loras: must be 1 to 2^30");
  EXPECT_EQ(error(1, (1 << 30) + 1, {8}), "max_loras: must be 1 to 2^30");
  EXPECT_EQ(error(1, 1, {8, 0}), "segment_size: must be at least 1");
}

TEST(Segments, NeedASize) {
  EXPECT_THROW(segments_of({0}, 1, 0), InputError);
  EXPECT_THROW(max_segments(1, 1, 0), InputError);
}

}  // namespace
}  // namespace loratory::gpu
