// Which implementation computes a layer: by dtypes and mode alone.
#include "gpu/plan/lora_path.hpp"

#include <gtest/gtest.h>

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::IntermediateMode;
using reference::NumericMode;
using reference::ScaleMode;
using reference::SumMode;

constexpr LoraDtypes kBf16{
    .x = Dtype::bf16, .weight = Dtype::bf16, .h = Dtype::f32, .y = Dtype::bf16};

LoraPath linear(LoraDtypes dtypes, NumericMode mode = {}) {
  return choose_path(LoraOp::linear, dtypes, mode);
}

LoraDtypes with(Dtype LoraDtypes::*tensor, Dtype dtype) {
  LoraDtypes out = kBf16;
  out.*tensor = dtype;
  return out;
}

// [1.17] What the tensor cores have.
TEST(ChoosePath, TensorCoresTakeOneDtypeAndTheAccumulator) {
  EXPECT_EQ(linear(kBf16), LoraPath::tensor_core);
  EXPECT_EQ(linear(with(&LoraDtypes::y, Dtype::f32)), LoraPath::tensor_core);
  EXPECT_EQ(linear(kBf16, reference::kSglangMode), LoraPath::tensor_core);
  EXPECT_EQ(linear(kBf16, {IntermediateMode::split2, SumMode::two_round, ScaleMode::accumulator}),
            LoraPath::tensor_core);
  EXPECT_EQ(
      linear(kBf16, {IntermediateMode::cast_to_weight, SumMode::two_round, ScaleMode::accumulator}),
      LoraPath::tensor_core);
}

// [1.17] And what they do not; [1.13] folding rounds B, which they read as it is.
TEST(ChoosePath, TheRestIsGeneric) {
  EXPECT_EQ(linear(with(&LoraDtypes::x, Dtype::f32)), LoraPath::generic);
  EXPECT_EQ(linear(with(&LoraDtypes::x, Dtype::f16)), LoraPath::generic);
  EXPECT_EQ(linear(with(&LoraDtypes::y, Dtype::f16)), LoraPath::generic);
  EXPECT_EQ(linear({Dtype::f32, Dtype::f32, Dtype::f32, Dtype::f32}), LoraPath::generic);
  EXPECT_EQ(linear(kBf16, reference::kVllmMode), LoraPath::generic);
  EXPECT_EQ(linear(with(&LoraDtypes::y, Dtype::f32),
                   {IntermediateMode::cast_to_weight, SumMode::two_round, ScaleMode::accumulator}),
            LoraPath::generic);
}

// Each operation looks at its own tensors.
TEST(ChoosePath, AnOperationLooksAtItsOwnTensors) {
  const auto path = [](LoraOp op, LoraDtypes dtypes) {
    return choose_path(op, dtypes, reference::kDefaultMode);
  };
  EXPECT_EQ(path(LoraOp::linear, with(&LoraDtypes::h, Dtype::f16)), LoraPath::tensor_core);
  EXPECT_EQ(path(LoraOp::shrink, with(&LoraDtypes::y, Dtype::f16)), LoraPath::tensor_core);
  EXPECT_EQ(path(LoraOp::shrink, with(&LoraDtypes::h, Dtype::bf16)), LoraPath::generic);
  EXPECT_EQ(path(LoraOp::shrink, with(&LoraDtypes::x, Dtype::f32)), LoraPath::generic);
  EXPECT_EQ(path(LoraOp::expand, with(&LoraDtypes::x, Dtype::f32)), LoraPath::tensor_core);
  EXPECT_EQ(path(LoraOp::expand, with(&LoraDtypes::h, Dtype::bf16)), LoraPath::generic);
  EXPECT_EQ(path(LoraOp::expand, with(&LoraDtypes::y, Dtype::f16)), LoraPath::generic);
  EXPECT_EQ(choose_path(LoraOp::shrink, kBf16, reference::kVllmMode), LoraPath::tensor_core);
  EXPECT_EQ(choose_path(LoraOp::expand, kBf16, reference::kVllmMode), LoraPath::generic);
}

}  // namespace
}  // namespace loratory::gpu
