// Worked examples of the engines' operation sets: A.1 in every form, and mistakes that engines have
// made, shown to be mistakes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "reference/base/input_error.hpp"
#include "reference/engines/chunked_sgmv.hpp"
#include "reference/engines/grouped.hpp"
#include "reference/engines/punica_wrapper.hpp"

namespace loratory::reference {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsNan;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor tensor(Extents shape, const std::vector<double>& values) {
  Tensor t(Dtype::f32, std::move(shape));
  for (size_t i = 0; i < values.size(); ++i) store(Dtype::f32, &t.bytes()[4 * i], values[i]);
  return t;
}

std::vector<double> values(const Tensor& t) {
  std::vector<double> out;
  for (size_t i = 0; i < t.bytes().size(); i += 4) out.push_back(load(t.dtype(), &t.bytes()[i]));
  return out;
}

template <typename Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const InputError& problem) {
    return problem.what();
  }
  return "no error";
}

// A.1 with slot 2 for the base model where one is needed.
struct WorkedExample {
  StackedWeights stacked() const { return {a.view(), b.view(), {0, 2}}; }
  LoraSlice slice() const {
    return {a.view().part(0, 0, 2), b.view().part(0, 0, 2), std::span(ranks).first(2),
            std::span(scalings).first(2), std::nullopt};
  }
  GroupedArgs grouped() { return {x.view(), stacked(), ranks, scalings, {}, y.view()}; }

  Tensor x = tensor({3, 2}, {1, 2, 3, 4, -1, 1}), y = x;
  Tensor a = tensor({3, 2, 2}, {1, 1, kNan, kNan, 1, 0, 0, 2, kNan, kNan, kNan, kNan});
  Tensor b = tensor({3, 2, 2}, {1, kNan, 2, kNan, 1, 1, 0, -1, kNan, kNan, kNan, kNan});
  std::vector<int32_t> ranks{1, 2, 0};
  std::vector<float> scalings{0.5, 2, 1};
  std::vector<RequestTokens> requests{{0, 1}, {kBaseSlot, 1}, {1, 1}};
};

const auto kExpected = ElementsAre(2.5, 5, 3, 4, 1, -3);

// [1.1] [2.10] [2.14] [2.15]
TEST(PunicaWrapper, WorkedExample) {
  WorkedExample e;
  PunicaWrapper wrapper(2);
  const PunicaSlot slots[] = {{7, 1}, {9, 1}};
  const PunicaRequest requests[] = {{7, 1}, {std::nullopt, 1}, {9, 1}};
  EXPECT_TRUE(wrapper.update_metadata(requests, slots, 4, 100, 8));
  EXPECT_FALSE(wrapper.update_metadata(requests, slots, 4, 100, 8));
  EXPECT_THAT(wrapper.token_layout().token_lora_mapping, ElementsAre(0, -1, 1, -1));
  EXPECT_THAT(wrapper.sampler_indices(), ElementsAre(0, -1, 1));
  EXPECT_THAT(wrapper.sampler_indices_padded(), ElementsAre(0, 2 * 3 + 1, 1 * 3 + 2));
  EXPECT_THAT(wrapper.embedding_indices(0), ElementsAre(0, 0, 8, 0));
  EXPECT_THAT(wrapper.embedding_indices(1), ElementsAre(0, 0, 108, 0));
  EXPECT_TRUE(wrapper.update_metadata(requests, slots, 3, 100, 8));
  for (const NumericMode& mode : {kDefaultMode, kVllmMode}) {
    Tensor y = e.y;
    wrapper.add_lora_linear(e.x.view(), std::vector{e.slice()}, 0, true, mode, y.view());
    EXPECT_THAT(values(y), kExpected);
  }
}

// [2.10]: never the base model instead, and the last step's arrays stay.
TEST(PunicaWrapper, AnAdapterWithoutASlotStopsTheStep) {
  PunicaWrapper wrapper(2);
  const PunicaSlot slots[] = {{7, 1}, {std::nullopt, 0}}, both[] = {{7, 1}, {7, 2}};
  const PunicaRequest good[] = {{7, 2}}, bad[] = {{7, 2}, {8, 1}};
  wrapper.update_metadata(good, slots, 2, 1, 0);
  EXPECT_THAT(error_of([&] { wrapper.update_metadata(bad, slots, 3, 1, 0); }),
              HasSubstr("adapter 8: is in no slot"));
  EXPECT_THAT(error_of([&] { wrapper.update_metadata(good, both, 2, 1, 0); }),
              HasSubstr("adapter 7: is in two slots"));
  EXPECT_THAT(error_of([&] { wrapper.update_metadata(good, slots, 1, 1, 0); }),
              HasSubstr("num_padded_tokens"));
  EXPECT_THAT(wrapper.token_layout().token_lora_mapping, ElementsAre(0, 0));
  EXPECT_THAT(wrapper.generations(), ElementsAre(1, 0));
}

// [2.11] P71: two adapters exchange their slots between steps with the same requests. A memo on the
// requests alone hands out the old rows: the other user's adapter.
TEST(PunicaWrapper, AMemoWithoutGenerationsIsWrong) {
  const PunicaRequest requests[] = {{7, 1}, {9, 1}};
  PunicaSlot slots[] = {{7, 1}, {9, 1}};
  std::map<std::vector<uint64_t>, std::vector<int32_t>> mapping_only;
  const auto memoised = [&](const PunicaWrapper& fresh) {
    return mapping_only.try_emplace({7, 9}, fresh.token_layout().token_lora_mapping).first->second;
  };
  PunicaWrapper wrapper(2);
  wrapper.update_metadata(requests, slots, 2, 1, 0);
  EXPECT_THAT(memoised(wrapper), ElementsAre(0, 1));

  std::swap(slots[0].adapter, slots[1].adapter), ++slots[0].generation, ++slots[1].generation;
  EXPECT_TRUE(wrapper.update_metadata(requests, slots, 2, 1, 0));
  EXPECT_THAT(wrapper.token_layout().token_lora_mapping, ElementsAre(1, 0));
  EXPECT_THAT(memoised(wrapper), ElementsAre(0, 1)) << "stale";

  // The weights moved with their adapters, so the outputs do not change.
  WorkedExample e;
  const auto run = [&](PunicaWrapper& w, bool swapped) {
    Tensor x = tensor({2, 2}, {1, 2, -1, 1}), y = x,
           a = tensor({2, 2, 2}, {1, 1, 0, 0, 1, 0, 0, 2});
    Tensor b = tensor({2, 2, 2}, {1, 0, 2, 0, 1, 1, 0, -1});
    std::vector<float> scalings{0.5, 2};
    if (swapped) {
      std::rotate(a.bytes().begin(), a.bytes().begin() + 16, a.bytes().end());
      std::rotate(b.bytes().begin(), b.bytes().begin() + 16, b.bytes().end());
      std::swap(scalings[0], scalings[1]);
    }
    const std::vector<int32_t> ranks{2, 2};
    const LoraSlice slice{a.view(), b.view(), ranks, scalings, std::nullopt};
    w.add_lora_linear(x.view(), std::span(&slice, 1), 0, true, {}, y.view());
    return values(y);
  };
  EXPECT_THAT(run(wrapper, true), ElementsAre(2.5, 5, 1, -3));
  PunicaWrapper stale(2);
  const PunicaSlot old[] = {{7, 1}, {9, 1}};
  stale.update_metadata(requests, old, 2, 1, 0);
  EXPECT_THAT(run(stale, true), testing::Not(ElementsAre(2.5, 5, 1, -3)));
}

// [2.7] [2.8]: the base tokens' group comes first in active_lora_ids; who stops there does nothing.
TEST(PunicaWrapper, TheGroupOfBaseTokensIsSkippedNotTheEnd) {
  PunicaWrapper wrapper(2);
  const PunicaSlot slots[] = {{std::nullopt, 0}, {9, 1}};
  const PunicaRequest requests[] = {{std::nullopt, 1}, {9, 1}};
  wrapper.update_metadata(requests, slots, 2, 1, 0);
  ASSERT_THAT(wrapper.token_layout().active_lora_ids, ElementsAre(-1, 1, -1));
  WorkedExample e;
  Tensor x = tensor({2, 2}, {3, 4, -1, 1}), y = x;
  wrapper.add_lora_linear(x.view(), std::vector{e.slice()}, 0, true, {}, y.view());
  EXPECT_THAT(values(y), ElementsAre(3, 4, 1, -3));
}

// [1.9]
TEST(PunicaWrapper, BiasComesFirstAndNeedsAddInputs) {
  WorkedExample e;
  PunicaWrapper wrapper(2);
  const PunicaSlot slots[] = {{7, 1}, {9, 1}};
  const PunicaRequest requests[] = {{7, 1}, {std::nullopt, 1}, {9, 1}};
  wrapper.update_metadata(requests, slots, 3, 1, 0);
  Tensor bias = tensor({2, 2}, {10, 20, 30, 40});
  LoraSlice slice = e.slice();
  slice.bias = bias.view();
  const auto run = [&](bool add_inputs) {
    wrapper.add_lora_linear(e.x.view(), std::span(&slice, 1), 0, add_inputs, {}, e.y.view());
  };
  EXPECT_THAT(error_of([&] { run(false); }), HasSubstr("needs add_inputs"));
  run(true);
  EXPECT_THAT(values(e.y), ElementsAre(12.5, 25, 3, 4, 31, 37));
}

// [1.3] [1.4] [1.26]: slot 0 has rank 2 in slice 0 and no slice 1, slot 1 no slice 0 and rank 1 in
// slice 1. What is absent may be NaN, and its columns stay as they were.
TEST(PunicaWrapper, RanksAreThoseOfEachSlice) {
  const Tensor x = tensor({2, 1}, {1, 1});
  const Tensor a0 = tensor({2, 2, 1}, {1, 2, kNan, kNan}),
               a1 = tensor({2, 2, 1}, {kNan, kNan, 3, kNan});
  const Tensor b0 = tensor({2, 1, 2}, {10, 100, kNan, kNan});
  const Tensor b1 = tensor({2, 2, 2}, {kNan, kNan, kNan, kNan, 1, kNan, 2, kNan});
  const std::vector<int32_t> ranks0{2, 0}, ranks1{0, 1};
  const std::vector<float> scalings0{1, 7}, scalings1{7, 2};
  const std::vector<LoraSlice> slices{{a0.view(), b0.view(), ranks0, scalings0, std::nullopt},
                                      {a1.view(), b1.view(), ranks1, scalings1, std::nullopt}};
  PunicaWrapper wrapper(2);
  const PunicaSlot slots[] = {{7, 1}, {9, 1}};
  const PunicaRequest requests[] = {{7, 1}, {9, 1}};
  wrapper.update_metadata(requests, slots, 2, 1, 0);
  Tensor y = tensor({2, 3}, {1, kNan, kNan, kNan, 5, 6});
  wrapper.add_lora_linear(x.view(), slices, 0, true, {}, y.view());
  EXPECT_THAT(values(y), ElementsAre(211, IsNan(), IsNan(), IsNan(), 11, 18));
}

// [1.6] [1.28]: y = delta where covered; the row of the base token is not touched, and no old y
// read.
TEST(PunicaWrapper, EmbeddingsWithoutAddInputsAreDeltaAlone) {
  const Tensor a = tensor({2, 3, 1}, {1, 10, 100, kNan, kNan, kNan});  // [L, V, R]
  const Tensor b = tensor({2, 2, 1}, {1, -1, kNan, kNan});
  const std::vector<int32_t> ranks{1, 0};
  const std::vector<float> scalings{2, 1};
  PunicaWrapper wrapper(2);
  const PunicaSlot slots[] = {{7, 1}, {9, 1}};
  const PunicaRequest requests[] = {{7, 1}, {std::nullopt, 1}, {9, 1}};
  wrapper.update_metadata(requests, slots, 3, 3, 0);
  const std::vector<int64_t> ids{2, 1, 0};
  Tensor y = tensor({3, 2}, {kNan, kNan, 5, kNan, kNan, 6});
  wrapper.add_lora_embedding(ids, a.view(), {b.view(), ranks, scalings}, false, {}, y.view());
  EXPECT_THAT(values(y), ElementsAre(200, -200, 5, IsNan(), IsNan(), 6));
}

// [1.30]: delta is added to the logits that are there.
TEST(PunicaWrapper, LogitsKeepTheirBase) {
  WorkedExample e;
  PunicaWrapper wrapper(2);
  const PunicaSlot slots[] = {{7, 1}, {9, 1}};
  const PunicaRequest requests[] = {{7, 1}, {std::nullopt, 1}, {9, 1}};
  wrapper.update_metadata(requests, slots, 3, 1, 0);
  Tensor logits = tensor({3, 2}, {100, 200, 300, 400, 500, 600});
  wrapper.add_lora_logits(e.x.view(), e.slice(), {}, logits.view());
  EXPECT_THAT(values(logits), ElementsAre(101.5, 203, 300, 400, 502, 596));
}

// [1.1] [2.20]
TEST(ChunkedSgmv, WorkedExample) {
  WorkedExample e;
  ChunkedLayout layout;
  build(with_base_slot(e.requests, 2), 16, e.ranks, e.scalings, layout);
  const ChunkedSgmv engine(layout, kSglangMode);
  Tensor h = stacked_buffer(e.x.view(), e.stacked(), kSglangMode);
  engine.run_lora_a_sgemm(e.x.view(), e.a.view(), 1, h.view());
  engine.run_lora_b_sgemm(h.view(), e.b.view(), e.y.view());
  EXPECT_THAT(values(e.y), kExpected);
}

// [2.23]: the segments that a bigger step left reach rows of others; refreshed, they do not.
TEST(ChunkedSgmv, StaleSegmentsOfABiggerStepAreNeutralised) {
  WorkedExample e;
  ChunkedLayout bigger, smaller;
  const std::vector<RequestTokens> three{{0, 1}, {0, 1}, {1, 1}}, one{{0, 1}};
  build(three, 1, e.ranks, e.scalings, bigger);
  build(one, 1, e.ranks, e.scalings, smaller);
  const auto run = [&](const ChunkedLayout& layout) {
    Tensor y = e.y, h = stacked_buffer(e.x.view(), e.stacked(), {});
    const ChunkedSgmv engine(layout, {});
    engine.run_lora_a_sgemm(e.x.view(), e.a.view(), 1, h.view());
    engine.run_lora_b_sgemm(h.view(), e.b.view(), y.view());
    return values(y);
  };
  ChunkedLayout stale = bigger;  // only the first part rewritten
  std::copy(smaller.weight_indices.begin(), smaller.weight_indices.end(),
            stale.weight_indices.begin());
  std::copy(smaller.seg_indptr.begin(), smaller.seg_indptr.end(), stale.seg_indptr.begin());
  const auto alone = ElementsAre(2.5, 5, 3, 4, -1, 1);
  EXPECT_THAT(run(stale), testing::Not(alone));
  ChunkedLayout captured = bigger;
  refresh_for_replay(smaller, 3, 3, 2, captured);
  EXPECT_THAT(captured.seg_indptr, ElementsAre(0, 1, 1, 1));
  EXPECT_THAT(captured.weight_indices, ElementsAre(0, 2, 2));
  EXPECT_THAT(run(captured), alone);
  EXPECT_THAT(error_of([&] { refresh_for_replay(bigger, 3, 2, 2, captured); }),
              HasSubstr("more tokens or segments"));
  EXPECT_THAT(error_of([&] { refresh_for_replay(bigger, 2, 3, 2, captured); }),
              HasSubstr("more tokens or segments"));
  EXPECT_THAT(error_of([&] { refresh_for_replay(smaller, 3, 3, 1, captured); }),
              HasSubstr("rank 0"));
}

// [2.17]-[2.19]: arrays that do not fit together are named, before anything is written.
TEST(ChunkedSgmv, BadArraysAreNamed) {
  const auto error = [](auto spoil) {
    WorkedExample e;
    ChunkedLayout layout;
    build(with_base_slot(e.requests, 2), 1, e.ranks, e.scalings, layout);
    spoil(e, layout);
    return error_of([&] {
      const ChunkedSgmv engine(layout, {});
      Tensor h = stacked_buffer(e.x.view(), e.stacked(), {});
      engine.run_lora_a_sgemm(e.x.view(), e.a.view(), 1, h.view());
      engine.run_lora_b_sgemm(h.view(), e.b.view(), e.y.view());
    });
  };
  EXPECT_EQ(error([](auto&, auto&) {}), "no error");
  EXPECT_THAT(error([](auto&, auto& l) { l.seg_indptr.pop_back(); }), HasSubstr("seg_indptr"));
  EXPECT_THAT(error([](auto&, auto& l) { l.seg_indptr.back() = 4; }), HasSubstr("seg_indptr"));
  EXPECT_THAT(error([](auto&, auto& l) { l.seg_indptr[1] = 3; }), HasSubstr("seg_indptr"));
  EXPECT_THAT(error([](auto&, auto& l) { l.weight_indices[0] = 3; }), HasSubstr("weight_indices"));
  EXPECT_THAT(error([](auto&, auto& l) { l.permutation[0] = 3; }), HasSubstr("row 3"));
  EXPECT_THAT(error([](auto&, auto& l) { l.lora_ranks[0] = 3; }), HasSubstr("rank 3"));
  EXPECT_THAT(error([](auto&, auto& l) { l.scalings.pop_back(); }), HasSubstr("lora_ranks"));
  EXPECT_THAT(error([](auto&, auto& l) { l.scalings[0] = float(INFINITY); }),
              HasSubstr("not finite"));
}

// [1.1] [2.24] [2.25]
TEST(Grouped, WorkedExample) {
  for (const Dispatch dispatch : {Dispatch::per_request, Dispatch::grouped}) {
    WorkedExample e;
    RequestLayout layout;
    build(e.requests, e.ranks, e.scalings, layout);
    grouped_lora(layout, dispatch, e.grouped());
    EXPECT_THAT(values(e.y), kExpected);
  }
}

// [2.26]: the fast path is taken where its hint holds, and only there. A hint that an earlier step
// left would give the base request an adapter.
TEST(Grouped, AFastPathNeedsItsHintToHold) {
  WorkedExample e;
  RequestLayout single, mixed, pair;
  build(std::vector<RequestTokens>{{1, 2}, {1, 1}}, e.ranks, e.scalings, single);
  EXPECT_EQ(choose(single, e.ranks, e.scalings), Dispatch::single_adapter);
  build(std::vector<RequestTokens>{{1, 2}, {kBaseSlot, 1}}, e.ranks, e.scalings, mixed);
  mixed.single_lora_slot = single.single_lora_slot;
  mixed.single_lora_rank = single.single_lora_rank;
  EXPECT_EQ(choose(mixed, e.ranks, e.scalings), Dispatch::per_request);
  EXPECT_THAT(error_of([&] { grouped_lora(mixed, Dispatch::single_adapter, e.grouped()); }),
              HasSubstr("does not allow"));
  const std::vector<int32_t> ranks{2, 2, 2};
  const std::vector<float> scalings{0.5, 0.5, 2};
  build(std::vector<RequestTokens>{{0, 40}, {1, 40}}, ranks, scalings, pair);
  EXPECT_EQ(choose(pair, ranks, scalings), Dispatch::multi_adapter);
  EXPECT_EQ(choose(pair, ranks, std::vector<float>{0.5, 2, 2}), Dispatch::per_request);
  pair.multi_lora_start_slot = 1;
  EXPECT_EQ(choose(pair, ranks, scalings), Dispatch::per_request);
}

// [1.26]: slices lie at distance r. Two slices of rank 1 in a buffer for rank 2.
TEST(Stacked, SlicesFollowEachOtherAtTheDistanceOfTheRank) {
  const Tensor x = tensor({1, 1}, {1}), a = tensor({1, 4, 1}, {2, 3, kNan, kNan});
  const Tensor b = tensor({1, 2, 2}, {10, kNan, 100, kNan});
  Tensor y = tensor({1, 2}, {0, 0});
  const StackedWeights weights{a.view(), b.view(), {0, 1, 2}};
  const std::vector<int32_t> row{0};
  Tensor h = stacked_buffer(x.view(), weights, {});
  stacked_shrink(x.view(), a.view(), 2, {0, 1, 1, row}, h.view());
  EXPECT_THAT(values(h), ElementsAre(2, 3, 0, 0));
  stacked_expand(h.view(), b.view(), weights.output_offset, {0, 1, 1, row}, {}, y.view());
  EXPECT_THAT(values(y), ElementsAre(20, 300));
}

}  // namespace
}  // namespace loratory::reference
