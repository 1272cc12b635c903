// Layers on several tp_ranks, worked by hand: the examples A.1 to A.3, biases, the ends of a model.
#include "reference/parallel/linear_layers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "reference/parallel/vocab_layers.hpp"
#include "tests/reference/parallel/test_tensors.hpp"

namespace loratory::reference {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A.1: K = N = 2, W = I, one token of slot 0, one of the base model, one of slot 1. Slot 0:
// A = [[1, 1]], B = [[1], [2]], scaling 0.5; slot 1: A = [[1, 0], [0, 2]], B = [[1, 1], [0, -1]],
// scaling 2. y = [[2.5, 5], [3, 4], [1, -3]].
struct WorkedExample {
  std::vector<LoraPairs> adapters() const {
    return {{LoraPair{a0.view(), b0.view(), 0.5F}}, {LoraPair{a1.view(), b1.view(), 2}}};
  }
  // With x whole on every tp_rank and NaN in every fresh h.
  LayerInput input(int64_t tp_size, const std::vector<LocalBuffers>& buffers) const {
    return {.x = std::vector<Tensor>(size_t(tp_size), x),
            .slots = slots,
            .weight = w.view(),
            .bias = std::nullopt,
            .buffers = buffers,
            .h_before = NAN};
  }

  Tensor x = tensor(Dtype::f32, {3, 2}, {1, 2, 3, 4, -1, 1});
  Tensor w = tensor(Dtype::f32, {2, 2}, {1, 0, 0, 1});
  Tensor a0 = tensor(Dtype::f32, {1, 2}, {1, 1}), b0 = tensor(Dtype::f32, {2, 1}, {1, 2});
  Tensor a1 = tensor(Dtype::f32, {2, 2}, {1, 0, 0, 2});
  Tensor b1 = tensor(Dtype::f32, {2, 2}, {1, 1, 0, -1});
  std::vector<int32_t> slots{0, -1, 1};
};

ParallelConfig config(int64_t tp_size, bool fully_sharded) {
  return {.tp_size = tp_size, .fully_sharded = fully_sharded, .max_lora_rank = 2};
}

std::vector<double> row_of(const Tensor& t, int64_t row) {
  std::vector<double> out;
  for (int64_t n = 0; n < t.shape()[1]; ++n) out.push_back(t.get(row, n));
  return out;
}

// A.2, [3.9] [3.10]: what each tp_rank has before the sum, and the sum.
TEST(RowLayer, WorkedExample) {
  const WorkedExample e;
  for (const bool fully_sharded : {false, true}) {
    RowLayer layer{.shards = row_shards(config(2, fully_sharded), 2, 2),
                   .input_is_parallel = false,
                   .output = RowOutput::partial};
    const auto buffers = buffers_of(layer.shards, e.adapters(), Dtype::f32);
    const LayerInput in = e.input(2, buffers);
    const std::vector<Tensor> y = layer.run(in);
    if (fully_sharded) {
      for (const Tensor& h : layer.intermediate(in)) EXPECT_EQ(h.get(0, 0, 0), 3);
      EXPECT_THAT(row_of(y[0], 0), ElementsAre(2.5, 0));
      EXPECT_THAT(row_of(y[1], 0), ElementsAre(0, 5));
      EXPECT_THAT(row_of(y[0], 2), ElementsAre(1, 0));
      EXPECT_THAT(row_of(y[1], 2), ElementsAre(0, -3));
    } else {
      EXPECT_THAT(row_of(y[0], 0), ElementsAre(1.5, 1));
      EXPECT_THAT(row_of(y[1], 0), ElementsAre(1, 4));
      EXPECT_THAT(row_of(y[0], 2), ElementsAre(-3, 0));
      EXPECT_THAT(row_of(y[1], 2), ElementsAre(4, -3));
    }
    layer.output = RowOutput::reduced;
    for (const Tensor& reduced : layer.run(in)) {
      EXPECT_THAT(values(reduced), ElementsAre(2.5, 5, 3, 4, 1, -3)) << "not [4, 8]: doubled";
    }
  }
}

// A.3, [3.4] [1.7]: tp_rank 1 holds no row of slot 0, its part of the gathered h is zero.
TEST(ColumnLayer, FullyShardedWorkedExample) {
  const WorkedExample e;
  const ColumnLayer layer(column_shards(config(2, true), 2, 2), true);
  const auto buffers = buffers_of(layer.shards, e.adapters(), Dtype::f32);
  const LayerInput in = e.input(2, buffers);
  EXPECT_EQ(local_shrink(e.x, buffers[0], in).get(0, 2, 0), -1);
  EXPECT_EQ(local_shrink(e.x, buffers[1], in).get(0, 2, 0), 2);
  EXPECT_EQ(local_shrink(e.x, buffers[0], in).get(0, 0, 0), 3);
  for (const Tensor& h : layer.intermediate(in)) {
    EXPECT_EQ(h.get(0, 2, 0), -1);
    EXPECT_EQ(h.get(0, 2, 1), 2);
    EXPECT_EQ(h.get(0, 0, 0), 3);
    EXPECT_EQ(h.get(0, 0, 1), 0) << "not what the buffer held before";
    EXPECT_TRUE(std::isnan(h.get(0, 1, 0))) << "rows of base tokens are nobody's";
  }
  for (const Tensor& y : layer.run(in)) {
    EXPECT_THAT(values(y), ElementsAre(2.5, 5, 3, 4, 1, -3));
  }
}

// A.1, [3.1] [3.2]: each tp_rank has its columns; gathered, delta is in them once.
TEST(ColumnLayer, GatheredOnceDeltaIsIn) {
  const WorkedExample e;
  for (const bool fully_sharded : {false, true}) {
    ColumnLayer layer(column_shards(config(2, fully_sharded), 2, 2));
    const auto buffers = buffers_of(layer.shards, e.adapters(), Dtype::f32);
    const auto y = layer.run(e.input(2, buffers));
    EXPECT_THAT(values(y[0]), ElementsAre(2.5, 3, 1));
    EXPECT_THAT(values(y[1]), ElementsAre(5, 4, -3));
    layer.gather_output = true;
    for (const Tensor& gathered : layer.run(e.input(2, buffers))) {
      EXPECT_THAT(values(gathered), ElementsAre(2.5, 5, 3, 4, 1, -3));
    }
  }
}

// [3.2]
TEST(ColumnLayer, SeveralOutputsAreNotGathered) {
  EXPECT_THAT(error_of([] {
                ColumnLayer(merged_column_shards(config(2, false), 2, {2, 2}), true);
              }),
              HasSubstr("gather_output"));
  EXPECT_THAT(error_of([] {
                ColumnLayer(fused_column_shards(config(2, false), 2, {2, 2}), true);
              }),
              HasSubstr("gather_output"));
}

// [3.1] [1.9] The optional LoRA bias is cut like B.
TEST(ColumnLayer, LoraBiasIsCutLikeB) {
  const WorkedExample e;
  const LayerShards layer = fused_column_shards(config(2, false), 2, {2, 2});
  const Tensor b = counting({4, 1}), bias = tensor(Dtype::f32, {4}, {10, 20, 30, 40});
  const LoraPairs adapter{LoraPair{e.a0.view(), b.view(), 1}};
  for (int64_t p = 0; p < 2; ++p) {
    const auto buffers = buffers_of(layer, {adapter}, Dtype::f32);
    const LocalSlice& slice = buffers[size_t(p)].slices[0];
    Tensor local_bias = take_rows(bias.view(), layer.shards[size_t(p)][0].b_rows);
    ConstTensorView bias_of_slots = local_bias.view();
    bias_of_slots.shape = {1, 2}, bias_of_slots.strides = {2, 1};
    Tensor y(Dtype::f32, {1, 2});
    const std::vector<int32_t> slots{0};
    const Tensor x = tensor(Dtype::f32, {1, 2}, {1, 2});
    lora_linear({.x = x.view(),
                 .slots = slots,
                 .slices = {{slice.a.view(), slice.b.view(), slice.expand_ranks, slice.scalings,
                             bias_of_slots}},
                 .y = y.view()});
    // h = 3, rows 0 and 2 (1 and 3) of B and of the bias.
    EXPECT_THAT(values(y), p == 0 ? ElementsAre(10, 36) : ElementsAre(23, 49));
  }
}

// [3.9] The base bias counts once; x may come whole or already cut; the caller may sum.
TEST(RowLayer, BiasOnTpRankZeroAndBothInputs) {
  const WorkedExample e;
  const Tensor bias = tensor(Dtype::f32, {2}, {100, 200});
  for (const bool fully_sharded : {false, true}) {
    RowLayer layer{.shards = row_shards(config(2, fully_sharded), 2, 2),
                   .input_is_parallel = false};
    const auto buffers = buffers_of(layer.shards, e.adapters(), Dtype::f32);
    LayerInput in = e.input(2, buffers);
    in.bias = bias.view();
    EXPECT_THAT(values(layer.run(in)[1]), ElementsAre(102.5, 205, 103, 204, 101, 197));
    in.x = split(e.x, 2, 1);
    layer.input_is_parallel = true;
    EXPECT_THAT(values(layer.run(in)[0]), ElementsAre(102.5, 205, 103, 204, 101, 197));
    layer.output = RowOutput::partial;
    EXPECT_THAT(values(all_reduce(layer.run(in))[0]), ElementsAre(102.5, 205, 103, 204, 101, 197));
  }
}

std::vector<double> returned(const std::optional<Tensor>& bias) {
  return bias ? values(*bias) : std::vector<double>{};
}

// [3.25] With skip_bias_add y is what it is without a bias, and the caller gets that of his
// columns.
TEST(LayerInput, SkippedBiasesGoToTheCaller) {
  const WorkedExample e;
  const Tensor bias = tensor(Dtype::f32, {2}, {100, 200});
  const std::vector<double> all{100, 200}, first{100}, second{200}, none;
  for (const bool fully_sharded : {false, true}) {
    const ParallelConfig two = config(2, fully_sharded);
    const auto check = [&](const auto& layer, const std::vector<std::vector<double>>& expected) {
      const auto buffers = buffers_of(layer.shards, e.adapters(), Dtype::f32);
      LayerInput in = e.input(2, buffers);
      const std::vector<Tensor> without = layer.run(in);
      in.bias = bias.view();
      for (const auto& of_rank : layer.returned_bias(in)) EXPECT_EQ(returned(of_rank), none);
      in.skip_bias_add = true;
      const auto y = layer.run(in);
      const auto got = layer.returned_bias(in);
      ASSERT_EQ(got.size(), 2);
      for (size_t p = 0; p < 2; ++p) {
        EXPECT_EQ(values(y[p]), values(without[p]));
        EXPECT_EQ(returned(got[p]), expected[p]);
      }
      in.bias = std::nullopt;
      for (const auto& of_rank : layer.returned_bias(in)) EXPECT_EQ(returned(of_rank), none);
    };
    check(ColumnLayer(column_shards(two, 2, 2)), {first, second});
    check(ColumnLayer(column_shards(two, 2, 2), /*gathers_output=*/true), {all, all});
    check(ReplicatedLayer{replicated_shards(two, 2, 2)}, {all, all});
    for (const RowOutput output : {RowOutput::reduced, RowOutput::partial}) {
      check(RowLayer{.shards = row_shards(two, 2, 2), .input_is_parallel = false, .output = output},
            {all, all});
    }
  }
}

// [3.9] [3.11] 1 + 2^-8 + 2^-8 + 0: bf16 has the sum, but rounds each step back to 1.
TEST(RowLayer, RoundsTheReduceAsItIsTold) {
  std::vector<double> numbers;
  for (int t = 0; t < 4; ++t) numbers.insert(numbers.end(), {1, 0x1p-8, 0x1p-8, 0});
  const Tensor x = tensor(Dtype::bf16, {4, 4}, numbers);
  const Tensor w = tensor(Dtype::bf16, {1, 4}, {1, 1, 1, 1});
  const std::vector<int32_t> slots(4, -1);
  RowLayer layer{.shards = row_shards(config(4, false), 4, 1), .output = RowOutput::reduced};
  const auto buffers = buffers_of(layer.shards, {LoraPairs{}}, Dtype::bf16);
  const LayerInput in{.x = split(x, 4, 1),
                      .slots = slots,
                      .weight = w.view(),
                      .bias = std::nullopt,
                      .buffers = buffers,
                      .mode = {},
                      .out = Dtype::bf16,
                      .h_before = NAN};
  for (const RowOutput output : {RowOutput::reduced, RowOutput::scattered}) {
    layer.output = output;
    layer.rounding = ReduceRounding::at_end;
    EXPECT_EQ(layer.run(in)[3].get(0, 0), 1 + 0x1p-7);
    layer.rounding = ReduceRounding::each_sum;
    EXPECT_EQ(layer.run(in)[3].get(0, 0), 1);
  }
}

// [3.11] The layer sees all tokens, a tp_rank keeps the rows of its part.
TEST(RowLayer, ReduceScatterKeepsRows) {
  WorkedExample e;
  e.x = tensor(Dtype::f32, {4, 2}, {1, 2, 3, 4, -1, 1, 1, 2});
  e.slots = {0, -1, 1, 0};
  for (const bool fully_sharded : {false, true}) {
    const RowLayer layer{.shards = row_shards(config(2, fully_sharded), 2, 2),
                         .input_is_parallel = false,
                         .output = RowOutput::scattered};
    const auto buffers = buffers_of(layer.shards, e.adapters(), Dtype::f32);
    const auto y = layer.run(e.input(2, buffers));
    EXPECT_THAT(values(y[0]), ElementsAre(2.5, 5, 3, 4));
    EXPECT_THAT(values(y[1]), ElementsAre(1, -3, 2.5, 5));
  }
}

// [3.13] No collective: every tp_rank adds the same whole delta, with its bias.
TEST(ReplicatedLayer, EveryTpRankHasAllOfIt) {
  const WorkedExample e;
  const Tensor bias = tensor(Dtype::f32, {2}, {100, 200});
  for (const bool fully_sharded : {false, true}) {
    const ReplicatedLayer layer{replicated_shards(config(2, fully_sharded), 2, 2)};
    const auto buffers = buffers_of(layer.shards, e.adapters(), Dtype::f32);
    LayerInput in = e.input(2, buffers);
    in.bias = bias.view();
    const auto y = layer.run(in);
    ASSERT_EQ(y.size(), 2);
    for (const Tensor& t : y) EXPECT_THAT(values(t), ElementsAre(102.5, 205, 103, 204, 101, 197));
  }
}

// [1.3] [1.7] r_p = 0 is not rank 0: tp_ranks without rows of A still expand.
TEST(ColumnLayer, ATpRankWithoutRowsStillExpands) {
  const WorkedExample e;
  ParallelConfig four = config(4, true);
  four.max_lora_rank = 4;
  const ColumnLayer layer(column_shards(four, 2, 4));
  const Tensor b = tensor(Dtype::f32, {4, 1}, {1, 2, 3, 4}), w(Dtype::f32, {4, 2});
  const auto buffers = buffers_of(layer.shards, {{LoraPair{e.a0.view(), b.view(), 1}}}, Dtype::f32);
  LayerInput in = e.input(4, buffers);
  const std::vector<int32_t> slots{0, 0, 0};
  in.slots = slots, in.weight = w.view();
  const auto y = layer.run(in);
  for (size_t p = 0; p < 4; ++p) {
    EXPECT_EQ(buffers[p].slices[0].shrink_ranks[0], p == 0 ? 1 : 0);
    EXPECT_EQ(y[p].get(0, 0), 3 * double(p + 1));
  }
}

// V = 3, H = 2, padded to 4.
struct VocabExample {
  Tensor weight = tensor(Dtype::f32, {3, 2}, {1, 2, 3, 4, 5, 6});
  Tensor a_e = tensor(Dtype::f32, {1, 3}, {1, 10, 100});  // [r, V]
  Tensor b_e = tensor(Dtype::f32, {2, 1}, {1, -1});       // [H, r]
  Tensor a = tensor(Dtype::f32, {1, 2}, {1, 1});          // [r, H]
  Tensor b = tensor(Dtype::f32, {3, 1}, {1, 0, -1});      // [V, r]
};

// [3.14] [1.28] Delta after the reduce, once; columns of A over the whole vocabulary.
TEST(EmbeddingLayer, DeltaAfterTheReduce) {
  const VocabExample e;
  const std::vector<int64_t> ids{0, 2, 2};
  const std::vector<int32_t> slots{0, 0, -1};
  for (const bool fully_sharded : {false, true}) {
    const EmbeddingLayer layer(config(2, fully_sharded), 3, 2, 4);
    const auto buffers =
        buffers_of(layer.shards, {{LoraPair{e.a_e.view(), e.b_e.view(), 2}}}, Dtype::f32);
    const auto y = layer.run({ids, slots, e.weight.view(), buffers});
    ASSERT_EQ(y.size(), 2);
    for (const Tensor& t : y) EXPECT_THAT(values(t), ElementsAre(3, 0, 205, -194, 5, 6));
    const std::vector<int64_t> outside{0, 3, 2};
    EXPECT_THAT(error_of([&] {
                  layer.run({outside, slots, e.weight.view(), buffers});
                }),
                HasSubstr("token_ids[1]: id 3 is outside the vocabulary of 3"));
  }
}

// [3.15] [1.30] Both forms, with a padded vocabulary and a bias of the base layer or without.
TEST(LogitsLayer, BothFormsAreEqual) {
  const VocabExample e;
  const std::vector<int32_t> slots{0, -1};
  const Tensor x = tensor(Dtype::f32, {2, 2}, {1, 1, 1, 1});
  const Tensor bias = tensor(Dtype::f32, {3}, {100, 200, 300});
  for (const LogitsForm form : {LogitsForm::by_shard, LogitsForm::after_gather}) {
    for (const bool fully_sharded : {false, true}) {
      const LogitsLayer layer(form, config(2, fully_sharded), 2, 3, 4);
      const auto buffers =
          buffers_of(layer.shards, {{LoraPair{e.a.view(), e.b.view(), 0.5F}}}, Dtype::f32);
      LayerInput in{.x = {x, x},
                    .slots = slots,
                    .weight = e.weight.view(),
                    .bias = std::nullopt,
                    .buffers = buffers,
                    .h_before = NAN};
      for (const Tensor& y : layer.run(in)) {
        EXPECT_THAT(values(y), ElementsAre(4, 7, 10, 3, 7, 11));
      }
      in.bias = bias.view();
      for (const Tensor& y : layer.run(in)) {
        EXPECT_THAT(values(y), ElementsAre(104, 207, 310, 103, 207, 311));
      }
      in.skip_bias_add = true;
      EXPECT_THAT(error_of([&] { layer.run(in); }), HasSubstr("lm_head adds its bias itself"));
      const Extents b_of_a_slot{1, form == LogitsForm::by_shard ? 2 : 3, 2};
      EXPECT_EQ(buffer_shapes(layer.shards, 1, 1)[0].b, b_of_a_slot);
    }
  }
}

TEST(LayerInput, ErrorsNameWhatIsMissing) {
  const WorkedExample e;
  const ColumnLayer layer(column_shards(config(2, false), 2, 2));
  const auto buffers = buffers_of(layer.shards, e.adapters(), Dtype::f32);
  LayerInput in = e.input(1, buffers);
  EXPECT_THAT(error_of([&] { layer.run(in); }), HasSubstr("1 inputs and 2 buffers for 2 tp_ranks"));
  in = e.input(2, buffers);
  const Tensor wide(Dtype::f32, {2, 3});
  in.weight = wide.view();
  EXPECT_THAT(error_of([&] { layer.run(in); }), HasSubstr("weight"));
}

}  // namespace
}  // namespace loratory::reference
