// Layouts of expert weights, and what comes of each checkpoint layout in the buffers.
#include "reference/moe/weight_layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reference/base/input_error.hpp"
#include "reference/moe/expert_lora_buffer.hpp"
#include "tests/reference/adapter/adapter_files.hpp"
#include "tests/reference/moe/moe_case.hpp"

namespace loratory::reference {
namespace {

using testing::ElementsAre;

// Rows of expert 0: 0..3, of expert 1: 10..13.
Tensor fused() { return tensor(Dtype::f32, {2, 4, 1}, {0, 1, 2, 3, 10, 11, 12, 13}); }

std::vector<double> rows(const ConstTensorView& view) { return values(copy_of(view)); }

// [1.39]
TEST(WeightLayout, GateAndUpAreHalvesOrEverySecondRow) {
  const Tensor t = fused();
  const GateUp halves = split_gate_up(t.view(), GateUpLayout::halves);
  EXPECT_THAT(rows(halves.gate), ElementsAre(0, 1, 10, 11));
  EXPECT_THAT(rows(halves.up), ElementsAre(2, 3, 12, 13));
  const GateUp interleaved = split_gate_up(t.view(), GateUpLayout::interleaved);
  EXPECT_THAT(rows(interleaved.gate), ElementsAre(0, 2, 10, 12));
  EXPECT_THAT(rows(interleaved.up), ElementsAre(1, 3, 11, 13));
  for (const auto layout : {GateUpLayout::halves, GateUpLayout::interleaved}) {
    EXPECT_EQ(join_gate_up(split_gate_up(t.view(), layout), layout).bytes(), t.bytes());
  }
}

// [1.39] [3.18] A contiguous cut would give tp_rank 0 two gate rows, or gate 0 with up 0 of the
// wrong layout.
TEST(WeightLayout, ShardsKeepTheLayout) {
  const Tensor t = tensor(Dtype::f32, {1, 8, 1}, {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_THAT(values(shard_gate_up(t.view(), GateUpLayout::halves, 2, 0)), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(values(shard_gate_up(t.view(), GateUpLayout::halves, 2, 1)), ElementsAre(2, 3, 6, 7));
  EXPECT_THAT(values(shard_gate_up(t.view(), GateUpLayout::interleaved, 2, 0)),
              ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(values(shard_gate_up(t.view(), GateUpLayout::interleaved, 4, 2)), ElementsAre(4, 5));
  EXPECT_THROW(shard_gate_up(t.view(), GateUpLayout::halves, 3, 0), InputError);
  // Cut then converted is converted then cut.
  const Tensor halves =
      join_gate_up(split_gate_up(t.view(), GateUpLayout::interleaved), GateUpLayout::halves);
  const Tensor cut = shard_gate_up(t.view(), GateUpLayout::interleaved, 2, 1);
  EXPECT_EQ(join_gate_up(split_gate_up(cut.view(), GateUpLayout::interleaved), GateUpLayout::halves)
                .bytes(),
            shard_gate_up(halves.view(), GateUpLayout::halves, 2, 1).bytes());
}

// [1.40] One slice of rank 2r gives the deltas of the two slices.
TEST(WeightLayout, BlockDiagonalIsTwoSlices) {
  const Tensor gate_a = tensor(Dtype::f32, {1, 2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor up_a = tensor(Dtype::f32, {1, 2, 3}, {-1, 0, 2, 3, -2, 1});
  const Tensor gate_b = tensor(Dtype::f32, {1, 2, 2}, {1, -1, 2, 0});
  const Tensor up_b = tensor(Dtype::f32, {1, 2, 2}, {3, 1, 0, -2});
  const BlockDiagonal one =
      to_block_diagonal({gate_a.view(), up_a.view()}, {gate_b.view(), up_b.view()});
  EXPECT_THAT(values(one.a), ElementsAre(1, 2, 3, 4, 5, 6, -1, 0, 2, 3, -2, 1));
  EXPECT_THAT(values(one.b), ElementsAre(1, -1, 0, 0, 2, 0, 0, 0, 0, 0, 3, 1, 0, 0, 0, -2));
  const GateUp blocks = blocks_of(one.b.view());
  EXPECT_EQ(copy_of(blocks.gate).bytes(), gate_b.bytes());
  EXPECT_EQ(copy_of(blocks.up).bytes(), up_b.bytes());

  const Tensor x = tensor(Dtype::f32, {1, 3}, {1, 1, 2});
  const std::vector<int32_t> experts{0}, slots{0}, enabled{1, 0}, two{2}, four{4};
  const std::vector<float> scalings{0.5F};
  const auto slot = [](const Tensor& t) {  // [1, E, ...] with one slot
    ConstTensorView view = t.view();
    view.shape.insert(view.shape.begin(), 1), view.strides.insert(view.strides.begin(), 0);
    return view;
  };
  const auto delta = [&](const std::vector<ExpertLoraSlice>& slices) {
    Tensor y(Dtype::f32, {1, 4});
    const ExpertRows rows{1, experts, {}};
    const TokenAdapters adapters{slots, enabled};
    expert_lora({.x = x.view(),
                 .rows = rows,
                 .adapters = adapters,
                 .slices = slices,
                 .router_weights = {},
                 .y = y.view()},
                single_row_tiles(rows, adapters));
    return values(y);
  };
  const auto as_one = delta({{slot(one.a), slot(one.b), four, scalings}});
  EXPECT_EQ(as_one, delta({{slot(gate_a), slot(gate_b), two, scalings},
                           {slot(up_a), slot(up_b), two, scalings}}));
  EXPECT_THAT(as_one, ElementsAre(-6, 9, 6, -3));

  Tensor bad = one.b;
  bad.set(1, 0, 0, 2);
  EXPECT_THROW(blocks_of(bad.view()), InputError);
}

// [1.38]
TEST(WeightLayout, SharedExpertsShowTheFirst) {
  const Tensor one = tensor(Dtype::f32, {1, 2, 1}, {3, 4});
  EXPECT_THAT(rows(share_experts(one.view(), 0, 3)), ElementsAre(3, 4, 3, 4, 3, 4));
}

TEST(WeightLayout, Errors) {
  const Tensor odd(Dtype::f32, {1, 3, 2});
  EXPECT_THROW(split_gate_up(odd.view(), GateUpLayout::halves), InputError);
  EXPECT_THROW(blocks_of(odd.view()), InputError);
  EXPECT_THROW(share_experts(odd.view(), 1, 4), InputError);
  EXPECT_THROW(narrow(odd.view(), 1, 2, 2), InputError);
  EXPECT_THROW(narrow(odd.view(), 3, 0, 0), InputError);
}

const std::string kMlp = "base_model.model.model.layers.0.mlp.experts";

// Numbers of A and B of every expert as the buffer has them, and its ranks.
struct Loaded {
  std::vector<double> a, b;
  std::vector<int32_t> ranks;

  friend bool operator==(const Loaded&, const Loaded&) = default;
};

Loaded load(const Adapter& adapter, Projection projection) {
  const bool is_down = projection == Projection::down;
  ExpertLoraBuffer buffer(Dtype::f32, {1, 6, 3, is_down ? 5 : 8, is_down ? 8 : 5});
  buffer.load(0, adapter, 0, projection);
  const ExpertLoraSlice slice = buffer.slice();
  return {rows(slice.a), rows(slice.b), {slice.ranks.begin(), slice.ranks.end()}};
}

// [1.38] Expert by expert, 3-D, and PEFT's parameters with the expert fastest in B (r != E).
TEST(ExpertLoraBuffer, CheckpointLayoutsGiveTheSameBuffers) {
  TestTensors by_expert, fused_3d, parameter;
  std::vector<float> a, b, parameter_b(size_t(8 * 2 * 6));
  for (int64_t e = 0; e < 6; ++e) {
    std::vector<float> a_e, b_e;
    for (int64_t i = 0; i < 10; ++i) a_e.push_back(float(100 * e + i));
    for (int64_t i = 0; i < 16; ++i) b_e.push_back(float(1000 * e + i));
    for (int64_t i = 0; i < 16; ++i) parameter_b[size_t(i * 6 + e)] = b_e[size_t(i)];
    const std::string path = kMlp + "." + std::to_string(e) + ".down_proj.lora_";
    by_expert.add_numbers(path + "A.weight", {2, 5}, a_e);
    by_expert.add_numbers(path + "B.weight", {8, 2}, b_e);
    a.insert(a.end(), a_e.begin(), a_e.end()), b.insert(b.end(), b_e.begin(), b_e.end());
  }
  fused_3d.add_numbers(kMlp + ".w2.lora_A.weight", {6, 2, 5}, a)
      .add_numbers(kMlp + ".w2.lora_B.weight", {6, 8, 2}, b);
  parameter.add_numbers(kMlp + ".lora_A.weight", {12, 5}, a)
      .add_numbers(kMlp + ".lora_B.weight", {8, 12}, parameter_b);
  const Loaded expected = load(by_expert.load(), Projection::down);
  EXPECT_EQ(expected.a[15 * 5 + 6], 506);  // expert 5, rank 1, column 1
  EXPECT_EQ(expected.a[15 * 5 + 10], 0);   // beyond the rank
  EXPECT_THAT(expected.ranks, testing::Each(2));
  EXPECT_EQ(load(fused_3d.load(), Projection::down), expected);
  EXPECT_EQ(load(parameter.load(), Projection::down), expected);
}

// [1.38] P21: dimension 1 in the place of E is the weights of every expert.
TEST(ExpertLoraBuffer, SharedOuterIsCopies) {
  TestTensors shared, copied;
  std::vector<float> a;
  for (int i = 0; i < 6 * 16; ++i) a.push_back(float(1 + i % 16));
  shared.add(kMlp + ".w1.lora_A.weight", {1, 2, 8}).add(kMlp + ".w1.lora_B.weight", {6, 5, 2});
  copied.add_numbers(kMlp + ".w1.lora_A.weight", {6, 2, 8}, a)
      .add(kMlp + ".w1.lora_B.weight", {6, 5, 2});
  EXPECT_EQ(load(shared.load(), Projection::gate), load(copied.load(), Projection::gate));
}

// [1.39] gpt-oss: rows 0::2 of the fused parameter are gate.
TEST(ExpertLoraBuffer, InterleavedParametersAreGateAndUp) {
  TestTensors tensors;
  tensors.add(kMlp + ".lora_A.weight", {12, 8}).add(kMlp + ".lora_B.weight", {10, 12}, 0);
  BaseModelShapes shapes = small_model();
  shapes.interleaved_gate_up = true;
  const AdapterConfig config = parse_adapter_config(
      R"({"r": 2, "lora_alpha": 3, "target_parameters": ["mlp.experts.gate_up_proj"]})");
  const Adapter adapter = tensors.load(config, {}, shapes);
  // B [10, r·E]: row n, rank 0, expert 0 is 12 n.
  const Loaded gate = load(adapter, Projection::gate), up = load(adapter, Projection::up);
  for (size_t n = 0; n < 5; ++n) {
    EXPECT_EQ(gate.b[n * 3], 24.0 * double(n));
    EXPECT_EQ(up.b[n * 3], 24.0 * double(n) + 12);
  }
  EXPECT_EQ(gate.a, up.a);
}

// Experts that the file does not name keep rank 0, also in a slot that had them before.
TEST(ExpertLoraBuffer, MissingExpertsHaveRankZero) {
  TestTensors one;
  one.add_pair("model.layers.0.mlp.experts.4.up_proj", 5, 8);
  ExpertLoraBuffer buffer(Dtype::bf16, {2, 3, 2, 8, 5});
  buffer.load(1, one.load(), 0, Projection::up, 3);  // the experts 3, 4, 5
  EXPECT_THAT(buffer.slice().ranks, ElementsAre(0, 0, 0, 0, 2, 0));
  EXPECT_EQ(buffer.slice().scalings[4], 1.5F);
  buffer.load(1, one.load(), 0, Projection::up, 0);
  EXPECT_THAT(buffer.slice().ranks, testing::Each(0));
  EXPECT_EQ(buffer.slice().a.get(1, 1, 0, 0), 0);
  buffer.load(1, one.load(), 0, Projection::up, 3);
  buffer.clear(1);
  EXPECT_THAT(buffer.slice().ranks, testing::Each(0));
}

TEST(ExpertLoraBuffer, Errors) {
  TestTensors one;
  one.add_pair("model.layers.0.mlp.experts.4.up_proj", 5, 8);
  const Adapter adapter = one.load();
  ExpertLoraBuffer buffer(Dtype::f32, {1, 6, 1, 8, 5}), other(Dtype::f32, {1, 6, 2, 7, 5});
  EXPECT_THROW(buffer.load(0, adapter, 0, Projection::up), InputError);  // rank 2 in R = 1
  EXPECT_THROW(other.load(0, adapter, 0, Projection::up), InputError);
  EXPECT_THROW(buffer.load(1, adapter, 0, Projection::up), InputError);
  EXPECT_THROW(buffer.clear(-1), InputError);
}

// [1.43] Bits without their scales would be other numbers: fp8 is refused, the slot keeps its own.
TEST(ExpertLoraBuffer, RefusesFp8) {
  TestTensors wide;
  wide.add_pair("model.layers.0.mlp.experts.4.up_proj", 5, 8);
  ExpertLoraBuffer buffer(Dtype::f32, {1, 6, 2, 8, 5});
  buffer.load(0, wide.load(), 0, Projection::up);
  const auto a_before = rows(buffer.slice().a), b_before = rows(buffer.slice().b);
  for (const bool a_is_fp8 : {true, false}) {
    TestTensors fp8;
    const std::string path = kMlp + ".4.up_proj.lora_";
    const std::string narrow = a_is_fp8 ? "A.weight" : "B.weight";
    const Extents a{2, 8}, b{5, 2};
    fp8.add_bytes(path + narrow, StorageDtype::f8e4m3, a_is_fp8 ? a : b,
                  std::string(a_is_fp8 ? 16 : 10, '\x38'))
        .add(path + narrow + "_scale", {1})
        .add(path + (a_is_fp8 ? "B.weight" : "A.weight"), a_is_fp8 ? b : a);
    const Adapter adapter = fp8.load();
    EXPECT_THROW(buffer.load(0, adapter, 0, Projection::up), InputError);
    EXPECT_EQ(rows(buffer.slice().a), a_before);
    EXPECT_EQ(rows(buffer.slice().b), b_before);
  }
}

// [1.35] No LoRA on the router: such a checkpoint is refused.
TEST(ExpertLoraBuffer, TheRouterHasNoLora) {
  TestTensors router;
  router.add_pair("model.layers.0.block_sparse_moe.gate", 6, 8);
  EXPECT_EQ(router.refusal(), "E_UNSUPPORTED(router)");
}

}  // namespace
}  // namespace loratory::reference
