// The worked examples 2.6, 2.14, 2.20 and 2.25.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "reference/base/input_error.hpp"
#include "reference/layout/batch_layout.hpp"
#include "reference/layout/chunked_layout.hpp"
#include "reference/layout/request_layout.hpp"
#include "reference/layout/sampler_mapping.hpp"

namespace loratory::reference {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::ThrowsMessage;
using Ints = std::vector<int32_t>;

struct BatchExample {
  int32_t max_loras;
  Ints slots, sorted, ids, counts, start;
  bool no_lora;
};

// [2.1]-[2.6] [2.8]
TEST(BatchLayout, WorkedExamples) {
  const BatchExample examples[] = {
      {3,
       {0, -1, 2, 0, 2, 2, -1},
       {1, 6, 0, 3, 2, 4, 5},
       {-1, 0, 2, -1},
       {2, 2, 3, 0},
       {0, 2, 4, 7, 0},
       false},
      {3, {-1, -1}, {0, 1}, {-1, -1, -1, -1}, {2, 0, 0, 0}, {0, 2, 0, 0, 0}, true},
      {2, {1, 1, 1}, {0, 1, 2}, {1, -1, -1}, {3, 0, 0}, {0, 3, 0, 0}, false},
      {4,
       {3, 1, -1, 1, 0},
       {2, 4, 1, 3, 0},
       {-1, 0, 1, 3, -1},
       {1, 1, 2, 1, 0},
       {0, 1, 2, 4, 5, 0},
       false},
  };
  for (const BatchExample& e : examples) {
    const BatchLayout expected{e.slots, e.sorted,  e.ids,          e.counts,
                               e.start, e.no_lora, e.max_loras + 1};
    EXPECT_EQ(make_batch_layout(e.slots, e.max_loras), expected);
  }
}

// [2.13] A prompt of 100 tokens of which 3 are scheduled has 3 here; one that is skipped has none.
TEST(TokenSlots, FollowTheRequestsWithTheirScheduledTokens) {
  EXPECT_THAT(token_slots(std::vector<RequestTokens>{{2, 3}, {0, 0}, {-1, 1}, {0, 2}}),
              ElementsAre(2, 2, 2, -1, 0, 0));
  EXPECT_THAT(token_slots({}), IsEmpty());
}

// [2.5] [2.16]
TEST(BatchLayout, PaddingCountsAsBaseTokens) {
  BatchLayout layout;
  build(Ints{0, 0}, 1, 4, layout);
  EXPECT_THAT(layout.token_lora_mapping, ElementsAre(0, 0, -1, -1));
  EXPECT_THAT(layout.token_indices_sorted, ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(layout.num_tokens_per_lora, ElementsAre(2, 2));
  EXPECT_FALSE(layout.no_lora);
  EXPECT_TRUE(make_batch_layout({}, 2).no_lora);
}

// [2.9]
TEST(BatchLayout, RejectsSlotsThatDoNotExist) {
  EXPECT_THROW(make_batch_layout(Ints{0, 2}, 2), InputError);
  EXPECT_THROW(make_batch_layout(Ints{-2}, 2), InputError);
  BatchLayout layout;
  EXPECT_THROW(build(Ints{0, 1}, 2, 1, layout), InputError);
}

// No count of tokens or slots is below 0, and an int32 holds them all together.
TEST(Layouts, RejectCountsThatCannotBe) {
  BatchLayout layout;
  EXPECT_THROW(build({}, -1, 3, layout), InputError);
  EXPECT_THROW(padded_sampler_indices(Ints{-1}, -1), InputError);
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  EXPECT_THROW(make_batch_layout(Ints{0}, kMost), InputError);
  constexpr int32_t kSlots = (1 << 30) - 2;
  EXPECT_THAT(padded_sampler_indices(Ints{-1, -1}, kSlots),
              ElementsAre(2 * kSlots, 2 * kSlots + 1));
  EXPECT_THROW(padded_sampler_indices(Ints{-1, -1}, kSlots + 1), InputError);
  const int32_t most = std::numeric_limits<int32_t>::max();
  for (const RequestTokens bad : {RequestTokens{0, -1}, RequestTokens{0, most}}) {
    const std::vector<RequestTokens> requests{{0, 1}, bad};
    const auto names_it = ThrowsMessage<InputError>(testing::StartsWith("requests[1]: "));
    EXPECT_THAT([&] { token_slots(requests); }, names_it);
    RequestLayout by_request;
    EXPECT_THAT([&] { build(requests, Ints{8}, std::vector<float>{1}, by_request); }, names_it);
    ChunkedLayout in_chunks;
    EXPECT_THAT([&] { build(requests, 16, Ints{8}, std::vector<float>{1}, in_chunks); }, names_it);
    const std::vector<SampledRequest> sampled{{requests[0]}, {requests[1]}};
    EXPECT_THAT([&] { make_sampler_mapping(sampled); }, names_it);
  }
}

ChunkedLayout chunked(std::vector<RequestTokens> requests, int32_t segment_size) {
  ChunkedLayout layout;
  build(requests, segment_size, Ints{8, 8, 8}, std::vector<float>{1, 1, 1}, layout);
  return layout;
}

// [2.17]-[2.20]
TEST(ChunkedLayout, WorkedExamples) {
  const ChunkedLayout small = chunked({{0, 2}, {1, 1}, {0, 3}}, 3);
  EXPECT_THAT(small.permutation, ElementsAre(0, 1, 3, 4, 5, 2));
  EXPECT_THAT(small.weight_indices, ElementsAre(0, 0, 1));
  EXPECT_THAT(small.seg_indptr, ElementsAre(0, 3, 5, 6));
  EXPECT_THAT(small.lora_ranks, ElementsAre(8, 8, 8));
  EXPECT_THAT(small.scalings, ElementsAre(1, 1, 1));
  const ChunkedLayout wide = chunked({{0, 2}, {1, 1}, {0, 3}}, 16);
  EXPECT_THAT(wide.weight_indices, ElementsAre(0, 1));
  EXPECT_THAT(wide.seg_indptr, ElementsAre(0, 5, 6));
  const ChunkedLayout decode = chunked({{2, 1}, {0, 1}, {1, 1}, {2, 1}}, 16);
  EXPECT_THAT(decode.permutation, ElementsAre(1, 2, 0, 3));
  EXPECT_THAT(decode.weight_indices, ElementsAre(0, 1, 2));
  EXPECT_THAT(decode.seg_indptr, ElementsAre(0, 1, 2, 4));
  const ChunkedLayout cut = chunked({{1, 35}, {0, 16}}, 16);
  EXPECT_THAT(cut.weight_indices, ElementsAre(0, 1, 1, 1));
  EXPECT_THAT(cut.seg_indptr, ElementsAre(0, 16, 32, 48, 51));
}

// [2.17]
TEST(ChunkedLayout, RejectsBaseTokensWithoutSlot) {
  EXPECT_THROW(chunked({{-1, 1}}, 16), InputError);
  EXPECT_THROW(chunked({{3, 1}}, 16), InputError);
  EXPECT_THROW(chunked({{0, 1}}, 0), InputError);
}

RequestLayout grouped(std::vector<RequestTokens> requests) {
  RequestLayout layout;
  build(requests, Ints{8, 8, 16}, std::vector<float>{1, 1, 1}, layout);
  return layout;
}

// [2.24] [2.25]
TEST(RequestLayout, WorkedExamples) {
  const RequestLayout mixed = grouped({{1, 1}, {-1, 1}, {0, 1}, {1, 1}});
  EXPECT_THAT(mixed.sort_order, ElementsAre(2, 0, 3));
  EXPECT_THAT(mixed.group_slots, ElementsAre(0, 1));
  EXPECT_THAT(mixed.group_starts, ElementsAre(0, 1));
  EXPECT_THAT(mixed.group_sizes, ElementsAre(1, 2));
  EXPECT_EQ(mixed.num_groups, 2);
  EXPECT_EQ(mixed.max_group_size, 2);
  EXPECT_THAT(mixed.seg_lens, ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(mixed.weight_indices, ElementsAre(1, -1, 0, 1));
  const RequestLayout base = grouped({{-1, 1}, {-1, 1}});
  EXPECT_THAT(base.sort_order, IsEmpty());
  EXPECT_EQ(base.num_groups, 0);
  const RequestLayout prefill = grouped({{1, 4}, {-1, 1}, {1, 2}});
  EXPECT_THAT(prefill.seg_lens, ElementsAre(4, 1, 2));
  EXPECT_THAT(prefill.seg_indptr, ElementsAre(0, 4, 5, 7));
  EXPECT_THAT(prefill.weight_indices, ElementsAre(1, -1, 1));
  EXPECT_EQ(prefill.max_len, 4);
  EXPECT_EQ(prefill.num_groups, 0) << "groups are for decode";
}

// [2.26]
TEST(RequestLayout, HintsHoldOnlyWhenEverySegmentFits) {
  EXPECT_EQ(grouped({{2, 3}, {2, 1}}).single_lora_slot, 2);
  EXPECT_EQ(grouped({{2, 3}, {2, 1}}).single_lora_rank, 16);
  EXPECT_EQ(grouped({{2, 3}, {-1, 1}}).single_lora_slot, -1);
  const RequestLayout multi = grouped({{0, 40}, {1, 40}});
  EXPECT_EQ(multi.multi_lora_start_slot, 0);
  EXPECT_EQ(multi.multi_lora_count, 2);
  EXPECT_EQ(multi.multi_lora_segment_len, 40);
  EXPECT_EQ(multi.multi_lora_rank, 8);
  EXPECT_EQ(grouped({{0, 32}, {1, 32}}).multi_lora_start_slot, -1) << "not longer than 32";
  EXPECT_EQ(grouped({{0, 40}, {1, 41}}).multi_lora_start_slot, -1) << "lengths differ";
  EXPECT_EQ(grouped({{1, 40}, {0, 40}}).multi_lora_start_slot, -1) << "not consecutive";
  EXPECT_EQ(grouped({{1, 40}, {2, 40}}).multi_lora_start_slot, -1) << "ranks differ";
}

// [2.14], [1.31]: a middle chunk has no row, prompt logprobs have all.
TEST(SamplerMapping, OneRowForEachLogitsRow) {
  const SampledRequest requests[] = {{{0, 1}, true, false},    // decode
                                     {{2, 3}, false, false},   // middle chunk
                                     {{1, 3}, false, true},    // middle chunk with logprobs
                                     {{-1, 2}, true, false}};  // last chunk
  const SamplerMapping mapping = make_sampler_mapping(requests);
  EXPECT_THAT(mapping.row_slots, ElementsAre(0, 1, 1, 1, -1));
  EXPECT_THAT(mapping.row_tokens, ElementsAre(0, 4, 5, 6, 8));
  EXPECT_THAT(padded_sampler_indices(Ints{1, -1, 0}, 2), ElementsAre(0 + 3, 1 + 6, 2 + 0));
}

}  // namespace
}  // namespace loratory::reference
