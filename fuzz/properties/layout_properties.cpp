// Batch layouts: the three forms say the same [2.27], P11, P70.
// Method: random requests (slots, token counts, 0 among them); the expected partition comes from
// a walk over the tokens, one by one.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <ostream>

#include "fuzz/support/seeded_case.hpp"
#include "reference/layout/partition.hpp"

namespace loratory::reference {
namespace {

// num_ops - 1 requests.
struct Batch {
  explicit Batch(const sim::SeededCase& c) : draw(c.seed) {
    max_loras = int32_t(draw.between(1, 6));
    const bool decode = draw.one_in(3);
    for (int i = 0; i < c.num_ops - 1; ++i) {
      requests.push_back({int32_t(draw.between(-1, max_loras - 1)),
                          decode ? 1 : int32_t(draw(draw.one_in(5) ? 150 : 6))});
    }
    for (int32_t s = 0; s <= max_loras; ++s) {
      ranks.push_back(int32_t(draw.between(1, 3)) * 8);
      scalings.push_back(1);
    }
    ranks.back() = 0;  // the base model's slot in the chunked form
    RC_CLASSIFY(decode, "decode");
    RC_CLASSIFY(requests.empty(), "no requests");
  }

  std::span<const int32_t> slot_ranks() const { return std::span(ranks).first(max_loras); }
  std::span<const float> slot_scalings() const { return std::span(scalings).first(max_loras); }

  sim::Draw draw;
  int32_t max_loras;
  std::vector<RequestTokens> requests;
  std::vector<int32_t> ranks;  // [max_loras + 1]
  std::vector<float> scalings;
};

Partition expected_partition(const Batch& batch) {
  Partition tokens_of;
  int32_t t = 0;
  for (const RequestTokens& r : batch.requests) {
    for (int32_t i = 0; i < r.num_tokens; ++i, ++t) {
      if (r.slot != kBaseSlot) tokens_of[r.slot].push_back(t);
    }
  }
  return tokens_of;
}

ChunkedLayout chunked(const Batch& batch, int32_t segment_size) {
  ChunkedLayout layout;
  build(with_base_slot(batch.requests, batch.max_loras), segment_size, batch.ranks, batch.scalings,
        layout);
  return layout;
}

// [2.2] [2.27]
RC_GTEST_PROP(Layout, TheThreeFormsAreOnePartition, ()) {
  Batch batch(sim::any_seeded_case(12));
  const Partition expected = expected_partition(batch);
  RC_CLASSIFY(expected.empty(), "base tokens alone");
  RC_ASSERT(partition(make_batch_layout(token_slots(batch.requests), batch.max_loras)) == expected);
  for (const int32_t size : {1, 3, 16, 128}) {
    RC_ASSERT(partition(chunked(batch, size), batch.max_loras) == expected);
  }
  RequestLayout layout;
  build(batch.requests, batch.slot_ranks(), batch.slot_scalings(), layout);
  RC_ASSERT(partition(layout) == expected);
}

// [2.17] [2.18]
// P11: a segment holds 1 to segment_size tokens of one slot, and only the last of a slot is short.
RC_GTEST_PROP(Layout, SegmentsAreFullExceptTheLastOfASlot, ()) {
  Batch batch(sim::any_seeded_case(12));
  const auto size = int32_t(batch.draw.between(1, 40));
  const ChunkedLayout layout = chunked(batch, size);
  const auto slots = token_slots(with_base_slot(batch.requests, batch.max_loras));
  const size_t num_segments = layout.weight_indices.size();
  RC_ASSERT(layout.seg_indptr.size() == num_segments + 1);
  RC_ASSERT(layout.seg_indptr.back() == int32_t(slots.size()));
  for (size_t s = 0; s < num_segments; ++s) {
    const int32_t length = layout.seg_indptr[s + 1] - layout.seg_indptr[s];
    RC_ASSERT(length >= 1 && length <= size);
    const bool last =
        s + 1 == num_segments || layout.weight_indices[s + 1] != layout.weight_indices[s];
    RC_ASSERT(last || length == size);
    for (int32_t i = layout.seg_indptr[s]; i < layout.seg_indptr[s + 1]; ++i) {
      RC_ASSERT(slots[layout.permutation[i]] == layout.weight_indices[s]);
    }
  }
}

std::vector<int32_t> garbage(sim::Draw& draw) {
  std::vector<int32_t> values(size_t(draw(40)));
  for (int32_t& v : values) v = int32_t(draw.between(-1000, 1000));
  return values;
}

// [2.5] [2.16]
// P70: what an array held before a build never shows.
RC_GTEST_PROP(Layout, GarbageBeforeABuildDoesNotShow, ()) {
  Batch batch(sim::any_seeded_case(12));
  sim::Draw& draw = batch.draw;
  const std::vector<int32_t> slots = token_slots(batch.requests);
  const auto num_padded = int32_t(slots.size()) + int32_t(draw(9));
  BatchLayout fresh, used{garbage(draw), garbage(draw),  garbage(draw),    garbage(draw),
                          garbage(draw), draw.one_in(2), int32_t(draw(99))};
  build(slots, batch.max_loras, num_padded, fresh);
  build(slots, batch.max_loras, num_padded, used);
  RC_ASSERT(fresh == used);
  RC_ASSERT(int32_t(fresh.token_lora_mapping.size()) == num_padded);

  ChunkedLayout chunks{garbage(draw), garbage(draw), garbage(draw), garbage(draw), {7, 8}};
  build(with_base_slot(batch.requests, batch.max_loras), 16, batch.ranks, batch.scalings, chunks);
  RC_ASSERT(chunks == chunked(batch, 16));

  RequestLayout clean, dirty;
  dirty.seg_lens = dirty.sort_order = dirty.group_sizes = garbage(draw);
  dirty.single_lora_slot = dirty.multi_lora_start_slot = dirty.max_len = dirty.num_groups = 5;
  build(batch.requests, batch.slot_ranks(), batch.slot_scalings(), clean);
  build(batch.requests, batch.slot_ranks(), batch.slot_scalings(), dirty);
  RC_ASSERT(clean == dirty);
}

}  // namespace
}  // namespace loratory::reference
