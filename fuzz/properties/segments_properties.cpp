// The work list of the GPU's LoRA kernels, as the host builds it: P70.
// Method: random mappings of several shapes (one slot, all slots, few, mostly base tokens); what
// must hold is counted token by token. gpu_test holds the device's builder against this one.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "fuzz/support/seeded_case.hpp"
#include "gpu/layout/segments.hpp"

namespace loratory::gpu {
namespace {

// num_ops - 1 tokens.
struct Step {
  explicit Step(const sim::SeededCase& c) : draw(c.seed) {
    max_loras = int32_t(draw.between(1, 40));
    segment_size = int32_t(draw.one_in(4) ? draw.between(1, 300) : draw.between(1, 12));
    const int64_t num_used = draw.between(1, max_loras);
    const bool mostly_base = draw.one_in(4);
    for (int t = 0; t < c.num_ops - 1; ++t) {
      const bool base = mostly_base ? !draw.one_in(8) : draw.one_in(8);
      slots.push_back(base ? -1 : int32_t(draw(num_used)));
    }
    layout = reference::make_batch_layout(slots, max_loras);
    build(layout, segment_size, list);
    RC_CLASSIFY(list.segments.empty(), "no segments");
    RC_CLASSIFY(num_used == 1, "one slot");
  }

  sim::Draw draw;
  int32_t max_loras, segment_size;
  std::vector<int32_t> slots;
  reference::BatchLayout layout;
  SegmentList list;
};

// [2.2] Every token with an adapter stands in one segment, of its slot; no base token in any.
RC_GTEST_PROP(Segments, HoldEachTokenOnce, ()) {
  const Step step(sim::any_seeded_case(300));
  std::vector<int> times(step.slots.size(), 0);
  for (const Segment& s : step.list.segments) {
    RC_ASSERT(s.first >= 0 && s.first + s.num_tokens <= int32_t(step.slots.size()));
    for (int32_t i = s.first; i < s.first + s.num_tokens; ++i) {
      const auto token = size_t(step.layout.token_indices_sorted[size_t(i)]);
      RC_ASSERT(step.slots[token] == s.slot);
      ++times[token];
    }
  }
  for (size_t t = 0; t < times.size(); ++t) RC_ASSERT(times[t] == (step.slots[t] >= 0 ? 1 : 0));
}

// [2.18] Slots ascending, tokens of a slot in their order, and only its last segment short.
RC_GTEST_PROP(Segments, ComeInOrderAndFullFirst, ()) {
  const Step step(sim::any_seeded_case(300));
  const std::vector<Segment>& segments = step.list.segments;
  for (size_t i = 0; i < segments.size(); ++i) {
    RC_ASSERT(segments[i].num_tokens >= 1 && segments[i].num_tokens <= step.segment_size);
    RC_ASSERT(segments[i].unused == 0);
    if (i == 0) continue;
    const Segment& before = segments[i - 1];
    RC_ASSERT(segments[i].first == before.first + before.num_tokens);
    RC_ASSERT(segments[i].slot >= before.slot);
    RC_ASSERT(segments[i].slot > before.slot || before.num_tokens == step.segment_size);
  }
}

// There is always room, and in the worst case just enough: slots of one token more than fills.
RC_GTEST_PROP(Segments, AreNeverMoreThanThereIsRoomFor, ()) {
  Step step(sim::any_seeded_case(300));
  RC_ASSERT(int64_t(step.list.segments.size()) <=
            max_segments(int64_t(step.slots.size()), step.max_loras, step.segment_size));
  std::vector<int32_t> worst(size_t(step.draw(9)) * size_t(step.segment_size), 0);
  for (int32_t slot = 0; slot < step.max_loras; ++slot) worst.push_back(slot);
  build(reference::make_batch_layout(worst, step.max_loras), step.segment_size, step.list);
  const int64_t room = max_segments(int64_t(worst.size()), step.max_loras, step.segment_size);
  RC_ASSERT(int64_t(step.list.segments.size()) <= room);
  if (step.max_loras < step.segment_size) {
    RC_ASSERT(int64_t(step.list.segments.size()) == room);
  }
}

// P70: what a list held before a build never shows.
RC_GTEST_PROP(Segments, GarbageBeforeABuildDoesNotShow, ()) {
  Step step(sim::any_seeded_case(300));
  SegmentList used{.segment_size = int32_t(step.draw(99)), .segments = {}};
  used.segments.assign(size_t(step.draw(500)), {7, -7, 777, 77});
  build(step.layout, step.segment_size, used);
  RC_ASSERT(used.segments == step.list.segments);
  RC_ASSERT(used.segment_size == step.segment_size);
}

}  // namespace
}  // namespace loratory::gpu
