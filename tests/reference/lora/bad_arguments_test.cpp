// Every rule on the arguments of LoRA's functions: what breaks it is named, and nothing is written.
#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <string>

#include "reference/base/input_error.hpp"
#include "reference/lora/linear.hpp"
#include "reference/lora/oracle.hpp"
#include "tests/reference/tensors.hpp"

namespace loratory::reference {
namespace {

using testing::StartsWith;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InputError& problem) {
    return problem.what();
  }
  return "no error";
}

// Three tokens of two slots, K = 2; slices of 3 and 4 columns, rooms of 3 and 2 ranks.
struct Operands {
  Tensor x = filled(Dtype::bf16, {3, 2}, 1), h = filled(Dtype::bf16, {2, 3, 3}, 1),
         y = filled(Dtype::bf16, {3, 9}, 5);
  Tensor a0 = filled(Dtype::bf16, {2, 3, 2}, 1), a1 = filled(Dtype::bf16, {2, 2, 2}, 1);
  Tensor b0 = filled(Dtype::bf16, {2, 3, 3}, 1), b1 = filled(Dtype::bf16, {2, 4, 2}, 1);
  Tensor bias = filled(Dtype::bf16, {2, 4}, 1);
  std::vector<int32_t> slots{0, -1, 1}, ranks0{1, 3}, ranks1{2, 0};
  std::vector<float> scalings0{1, 2}, scalings1{1, 2};
};

// ---- shrink ----

std::string shrink_error(const std::function<void(Operands&, ShrinkArgs&)>& spoil) {
  Operands o;
  ShrinkArgs args{.x = o.x.view(),
                  .slots = o.slots,
                  .slices = {{o.a0.view(), o.ranks0}, {o.a1.view(), o.ranks1}},
                  .h = o.h.view()};
  spoil(o, args);
  const Tensor before = o.h;
  const std::string error = error_of([&] { shrink(args); });
  EXPECT_TRUE(error == "no error" || before.bytes() == o.h.bytes()) << error;
  return error;
}

TEST(BadArguments, OfShrink) {
  using O = Operands;
  using A = ShrinkArgs;
  EXPECT_EQ(shrink_error([](O&, A&) {}), "no error");
  EXPECT_THAT(shrink_error([](O&, A& a) { a.x.shape = {2, 2}; }), StartsWith("shrink: x: "));
  EXPECT_THAT(shrink_error([](O&, A& a) { a.x.shape = {3, 2, 1}; }), StartsWith("shrink: x: "));
  EXPECT_THAT(shrink_error([](O&, A& a) { a.x.shape = {3}; }), StartsWith("shrink: x: "));
  EXPECT_THAT(shrink_error([](O&, A& a) { a.x.dtype = Dtype::f8_e4m3fn; }),
              StartsWith("shrink: x: has dtype"));
  EXPECT_THAT(shrink_error([](O&, A& a) { a.h.shape = {1, 3, 3}; }), StartsWith("shrink: h: "));
  EXPECT_THAT(shrink_error([](O&, A& a) { a.h.shape = {2, 2, 3}; }), StartsWith("shrink: h: "));
  EXPECT_THAT(shrink_error([](O&, A& a) { a.h.dtype = Dtype::i8; }),
              StartsWith("shrink: h: has dtype"));
  EXPECT_THAT(shrink_error([](O&, A& a) {
                a.slices[1].a.shape = {1, 2, 2};
              }),
              StartsWith("shrink: slices[1].a: "));
  EXPECT_THAT(shrink_error([](O&, A& a) {
                a.slices[0].a.shape = {2, 3, 1};
              }),
              StartsWith("shrink: slices[0].a: "));
  EXPECT_THAT(shrink_error([](O&, A& a) { a.slices[1].a.dtype = Dtype::f16; }),
              StartsWith("shrink: slices[1].a: has dtype f16, x has bf16"));
  EXPECT_THAT(shrink_error([](O& o, A& a) { a.slices[1].ranks = std::span(o.ranks1).first(1); }),
              StartsWith("shrink: slices[1].ranks: has 1 ranks for 2 slots"));
  EXPECT_THAT(shrink_error([](O& o, A&) { o.ranks1[1] = 3; }),
              StartsWith("shrink: slices[1].ranks[1]: rank 3 is outside [0, 2]"));
  EXPECT_THAT(shrink_error([](O& o, A&) { o.ranks0[0] = -1; }),
              StartsWith("shrink: slices[0].ranks[0]: rank -1"));
  EXPECT_THAT(shrink_error([](O&, A& a) {
                a.h.shape = {2, 3, 2};
              }),
              StartsWith("shrink: slices[0].ranks[1]: rank 3 is outside [0, 2]"));
  EXPECT_THAT(shrink_error([](O& o, A&) { o.slots[2] = 2; }), StartsWith("slots[2]"));
  EXPECT_THAT(shrink_error([](O& o, A&) { o.slots[0] = -2; }), StartsWith("slots[0]"));
}

// Without slices there are no slots.
TEST(BadArguments, OfShrinkWithoutSlices) {
  const auto without_slices = [](Operands& o, ShrinkArgs& a) {
    a.slices.clear();
    a.h.shape[0] = 0;
    o.slots = {-1, -1, -1};
    a.slots = o.slots;
  };
  EXPECT_EQ(shrink_error(without_slices), "no error");
  EXPECT_THAT(shrink_error([&](Operands& o, ShrinkArgs& a) {
                without_slices(o, a);
                o.slots[1] = 0;
              }),
              StartsWith("slots[1]"));
}

// ---- expand ----

std::string expand_error(const std::function<void(Operands&, ExpandArgs&)>& spoil) {
  Operands o;
  ExpandArgs args{
      .h = o.h.view(),
      .slots = o.slots,
      .slices = {{o.b0.view(), o.ranks0, o.scalings0}, {o.b1.view(), o.ranks1, o.scalings1}},
      .offset_start = 2,
      .y = o.y.view()};
  spoil(o, args);
  const Tensor before = o.y;
  EXPECT_EQ(error_of([&] { expand_oracle(args); }), error_of([&] { expand(args); }));
  o.y = before;
  const std::string error = error_of([&] { expand(args); });
  EXPECT_TRUE(error == "no error" || before.bytes() == o.y.bytes()) << error;
  return error;
}

TEST(BadArguments, OfExpand) {
  using O = Operands;
  using A = ExpandArgs;
  EXPECT_EQ(expand_error([](O&, A&) {}), "no error");
  EXPECT_THAT(expand_error([](O&, A& a) { a.h.shape = {1, 3, 3}; }), StartsWith("expand: h: "));
  EXPECT_THAT(expand_error([](O&, A& a) { a.h.shape = {2, 4, 3}; }), StartsWith("expand: h: "));
  EXPECT_THAT(expand_error([](O&, A& a) { a.h.dtype = Dtype::f8_e5m2; }),
              StartsWith("expand: h: has dtype"));
  EXPECT_THAT(expand_error([](O&, A& a) {
                a.slices[1].b.shape = {3, 4, 2};
              }),
              StartsWith("expand: slices[1].b: "));
  EXPECT_THAT(expand_error([](O&, A& a) { a.slices[1].b.dtype = Dtype::i8; }),
              StartsWith("expand: slices[1].b: has dtype"));
  EXPECT_THAT(expand_error([](O& o, A&) { o.ranks1[1] = 3; }),
              StartsWith("expand: slices[1].ranks[1]: rank 3 is outside [0, 2]"));
  EXPECT_THAT(expand_error([](O&, A& a) {
                a.h.shape = {2, 3, 2};
              }),
              StartsWith("expand: slices[0].ranks[1]: rank 3 is outside [0, 2]"));
  EXPECT_THAT(expand_error([](O& o, A& a) { a.slices[1].ranks = std::span(o.ranks1).first(1); }),
              StartsWith("expand: slices[1].ranks: has 1 ranks for 2 slots"));
  EXPECT_THAT(
      expand_error([](O& o, A& a) { a.slices[1].scalings = std::span(o.scalings1).first(1); }),
      StartsWith("expand: slices[1].scalings: has 1 scalings for 2 slots"));
  EXPECT_THAT(expand_error([](O& o, A&) { o.scalings0[1] = NAN; }),
              StartsWith("expand: slices[0].scalings[1]: is not finite"));
  EXPECT_THAT(expand_error([](O&, A& a) { a.y.shape = {2, 9}; }), StartsWith("expand: y: "));
  EXPECT_THAT(expand_error([](O&, A& a) { a.y.dtype = Dtype::i8; }),
              StartsWith("expand: y: has dtype"));
  EXPECT_THAT(expand_error([](O&, A& a) { a.offset_start = 3; }),
              StartsWith("expand: y: has 9 columns, the slices end at 10"));
  EXPECT_THAT(expand_error([](O&, A& a) { a.offset_start = INT64_MAX; }),
              StartsWith("expand: y: has 9 columns, the slices end at 9223372036854775814"));
  EXPECT_THAT(expand_error([](O&, A& a) { a.offset_start = -1; }),
              StartsWith("expand: offset_start: is negative"));
  EXPECT_THAT(expand_error([](O& o, A&) { o.slots[2] = 2; }), StartsWith("slots[2]"));
}

// ---- linear ----

std::string linear_error(const std::function<void(Operands&, LinearArgs&)>& spoil) {
  Operands o;
  LinearArgs args{.x = o.x.view(),
                  .slots = o.slots,
                  .slices = {{o.a0.view(), o.b0.view(), o.ranks0, o.scalings0, std::nullopt},
                             {o.a1.view(), o.b1.view(), o.ranks1, o.scalings1, o.bias.view()}},
                  .y = o.y.view()};
  spoil(o, args);
  const Tensor before = o.y;
  EXPECT_EQ(error_of([&] { linear_oracle(args); }), error_of([&] { lora_linear(args); }));
  o.y = before;
  const std::string error = error_of([&] { lora_linear(args); });
  EXPECT_TRUE(error == "no error" || before.bytes() == o.y.bytes()) << error;
  return error;
}

TEST(BadArguments, OfLinear) {
  using O = Operands;
  using A = LinearArgs;
  EXPECT_EQ(linear_error([](O&, A&) {}), "no error");
  EXPECT_THAT(linear_error([](O&, A& a) {
                a.slices[1].a.shape = {1, 2, 2};
              }),
              StartsWith("lora_linear: slices[1].a: "));
  EXPECT_THAT(linear_error([](O&, A& a) {
                a.slices[1].b.shape = {1, 4, 2};
              }),
              StartsWith("lora_linear: slices[1].b: "));
  EXPECT_THAT(linear_error([](O&, A& a) { a.slices[0].b.dtype = Dtype::f32; }),
              StartsWith("lora_linear: slices[0].b: has dtype f32, a has bf16"));
  EXPECT_THAT(linear_error([](O&, A& a) { a.add_inputs = false; }),
              StartsWith("lora_linear: slices[1].bias: needs add_inputs"));
  EXPECT_THAT(linear_error([](O&, A& a) {
                a.slices[1].bias->shape = {2, 3};
              }),
              StartsWith("lora_linear: slices[1].bias: has shape"));
  EXPECT_THAT(linear_error([](O&, A& a) { a.slices[1].bias->dtype = Dtype::f16; }),
              StartsWith("lora_linear: slices[1].bias: has dtype f16, y has bf16"));
  EXPECT_THAT(linear_error([](O&, A& a) {
                a.y.shape = {4, 9};
              }),
              StartsWith("lora_linear: y: has shape"));
  // Found by the expand that follows, before the bias has changed y.
  EXPECT_THAT(linear_error([](O& o, A&) { o.scalings0[0] = INFINITY; }),
              StartsWith("expand: slices[0].scalings[0]"));
  EXPECT_THAT(linear_error([](O&, A& a) { a.offset_start = 3; }), StartsWith("expand: y: "));
  EXPECT_THAT(linear_error([](O& o, A&) { o.ranks0[0] = 200'000; }),
              StartsWith("shrink: slices[0].ranks[0]: rank 200000"));
  EXPECT_THAT(linear_error([](O& o, A&) { o.slots[2] = 1 << 30; }), StartsWith("slots[2]: "));
  EXPECT_THAT(linear_error([](O&, A& a) { a.x.shape[1] = 1; }), StartsWith("shrink: slices[0].a"));
  EXPECT_THAT(
      linear_error([](O& o, A& a) { a.slices[0].scalings = std::span(o.scalings0).first(1); }),
      StartsWith("expand: slices[0].scalings: has 1 scalings for 2 slots"));
}

// ---- embedding ----

std::string embedding_error(const std::function<void(Operands&, EmbeddingArgs&)>& spoil) {
  Operands o;
  const std::vector<int64_t> ids{0, 1, 0, 0};
  Tensor y = filled(Dtype::bf16, {3, 4}, 5);
  EmbeddingArgs args{.token_ids = std::span(ids).first(3),
                     .slots = o.slots,
                     .slice = {o.a1.view(), o.b1.view(), o.ranks1, o.scalings1, std::nullopt},
                     .y = y.view()};
  spoil(o, args);
  const Tensor before = y;
  EXPECT_EQ(error_of([&] { embedding_oracle(args); }), error_of([&] { lora_embedding(args); }));
  y = before;
  const std::string error = error_of([&] { lora_embedding(args); });
  EXPECT_TRUE(error == "no error" || before.bytes() == y.bytes()) << error;
  return error;
}

TEST(BadArguments, OfEmbedding) {
  using O = Operands;
  using A = EmbeddingArgs;
  const std::string place = "lora_embedding: ";
  EXPECT_EQ(embedding_error([](O&, A&) {}), "no error");
  EXPECT_THAT(embedding_error([](O&, A& a) {
                a.token_ids = {a.token_ids.data(), 4};
              }),
              StartsWith(place + "token_ids: must be one per slot"));
  EXPECT_THAT(embedding_error([](O& o, A& a) { a.slice.bias = o.bias.view(); }),
              StartsWith(place + "slice.bias: embeddings have none"));
  EXPECT_THAT(embedding_error([](O&, A& a) {
                a.slice.a.shape = {1, 2, 2};
              }),
              StartsWith(place + "slice.a: has shape"));
  EXPECT_THAT(
      embedding_error([](O&, A& a) { a.slice.a.dtype = a.slice.b.dtype = Dtype::f8_e4m3fn; }),
      StartsWith(place + "slice.a: has dtype"));
  EXPECT_THAT(embedding_error([](O&, A& a) {
                a.slice.b.shape = {3, 4, 2};
              }),
              StartsWith(place + "slice.b: has shape"));
  EXPECT_THAT(embedding_error([](O&, A& a) { a.slice.b.dtype = Dtype::f16; }),
              StartsWith(place + "slice.b: has dtype f16, a has bf16"));
  EXPECT_THAT(embedding_error([](O& o, A&) { o.ranks1[0] = 3; }),
              StartsWith(place + "slice.ranks[0]: rank 3"));
  EXPECT_THAT(embedding_error([](O& o, A&) { o.slots[1] = 2; }), StartsWith("slots[1]"));
  EXPECT_THAT(embedding_error([](O&, A& a) {
                a.slice.a.shape = {2, 2, 1};
              }),
              StartsWith(place + "token_ids[1]: id 1 is outside the vocabulary of 1"));
  EXPECT_THAT(embedding_error([](O&, A& a) { a.y.shape = {3, 3}; }), StartsWith("expand: y: "));
}

}  // namespace
}  // namespace loratory::reference
