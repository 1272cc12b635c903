#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "fuzz/support/random_model.hpp"
#include "reference/layout/batch_layout.hpp"
#include "reference/model/slot_lora.hpp"
#include "reference/model/slot_weights.hpp"
#include "tests/reference/adapter/adapter_files.hpp"

namespace loratory::reference {
namespace {

constexpr int64_t kMaxRank = 4;
const LinearRef kQkv{0, -1, PackedLinear::qkv};
const LinearRef kDown{1, -1, PackedLinear::down};

ModelConfig model() { return tiny_model_config(); }
SlotWeights empty_slots(int32_t max_loras) {
  return {base_model_shapes(model()), max_loras, kMaxRank};
}
RandomAdapter attention_only(uint64_t seed, int64_t rank) {
  return random_adapter(model(), seed, {.rank = rank, .mlp = false});
}
RandomAdapter everything(uint64_t seed) {
  return random_adapter(model(), seed, {.rank = 4, .embed_tokens = true, .lm_head = true});
}

// [1.43]: bits 0x38 are 1 in e4m3 and 0.5 in e5m2.
TEST(SlotWeights, Fp8BecomesNumbers) {
  const std::string path = "base_model.model.model.layers.0.self_attn.q_proj.lora_";
  TestTensors tensors;
  tensors.add_bytes(path + "A.weight", StorageDtype::f8e4m3, {2, 8}, std::string(16, '\x38'))
      .add_bytes(path + "B.weight", StorageDtype::f8e5m2, {12, 2}, std::string(24, '\x38'))
      .add_numbers(path + "A.weight_scale", {2}, {3, 5})
      .add_numbers(path + "B.weight_scale", {1}, {7});
  const Adapter adapter = tensors.load();
  SlotWeights slots(small_model(), 1, 2);
  slots.fill(0, adapter, {1, 1});
  const LoraSlice q = slots.slices(kQkv)[0];
  EXPECT_EQ(q.a.get(0, 0, 7), 3);
  EXPECT_EQ(q.a.get(0, 1, 7), 5);
  EXPECT_EQ(q.b.get(0, 11, 1), 3.5);
}

// [1.50a]: what fp8 holds exactly is the same in both kinds of slots; else it is rounded.
TEST(SlotWeights, OfFp8HaveItsNumbers) {
  for (const bool fits : {true, false}) {
    const RandomAdapter adapter =
        random_adapter(model(), 3, {.rank = 4, .embed_tokens = true, .fits_fp8 = fits});
    SlotWeights wide = empty_slots(1);
    SlotWeights fp8(base_model_shapes(model()), 1, kMaxRank, Dtype::f8_e4m3fn);
    wide.fill(0, adapter.adapter, {1, 1});
    fp8.fill(0, adapter.adapter, {1, 1});
    int64_t num_different = 0;
    for (const auto& [a, b] : {std::pair{wide.embedding(), fp8.embedding()},
                               {wide.slices(kQkv)[2], fp8.slices(kQkv)[2]}}) {
      for (int64_t i = 0; i < a.b.size(1); ++i) {
        for (int64_t j = 0; j < kMaxRank; ++j) {
          const double number = a.b.get(0, i, j), held = b.b.get(0, i, j);
          num_different += number != held;
          EXPECT_NEAR(number, held, std::abs(number) / 16 + 0x1p-18);  // up to 1
        }
      }
    }
    EXPECT_EQ(num_different == 0, fits);
  }
}

int64_t num_finite(const ConstTensorView& view) {
  int64_t count = 0;
  for (int64_t i = 0; i < view.size(0); ++i) {
    for (int64_t j = 0; j < view.size(1); ++j) count += std::isfinite(view.get(i, j));
  }
  return count;
}

TEST(SlotWeights, WhereOneAdapterLies) {  // [1.26] [5.9]
  SlotWeights slots = empty_slots(3);
  const RandomAdapter a = attention_only(1, 2);
  slots.fill(1, a.adapter, {.uid = 7, .generation = 5});
  EXPECT_EQ(slots.content(1), (SlotContent{7, 5}));
  EXPECT_EQ(slots.content(0), SlotContent{});
  const auto slices = slots.slices(kQkv);
  ASSERT_EQ(slices.size(), 3U);
  const LoraSlice& k = slices[1];
  EXPECT_EQ(k.a.shape, (Extents{3, kMaxRank, 64}));
  EXPECT_EQ(k.b.shape, (Extents{3, 32, kMaxRank}));
  const LoraModule* module = a.adapter.find({0, -1, Projection::k});
  ASSERT_NE(module, nullptr);
  EXPECT_EQ(k.ranks[1], 2);
  EXPECT_EQ(k.scalings[1], module->scaling);
  EXPECT_EQ(k.a.get(1, 1, 63), module->a.get(1, 63));
  EXPECT_EQ(k.b.get(1, 31, 1), module->b.get(31, 1));
  EXPECT_EQ(num_finite(k.a[1]), 2 * 64);  // NaN beyond the rank
  EXPECT_EQ(num_finite(k.b[1]), 2 * 32);
}

TEST(SlotWeights, NothingOfTheLastOwnerStays) {  // [5.9] P31: the table and the memory
  SlotWeights slots = empty_slots(2);
  slots.fill(0, everything(1).adapter, {1, 1});
  slots.fill(1, everything(1).adapter, {1, 1});
  slots.fill(0, attention_only(2, 1).adapter, {2, 2});
  const LoraSlice down = slots.slices(kDown)[0];
  EXPECT_EQ(down.ranks[0], 0);
  EXPECT_EQ(num_finite(down.a[0]) + num_finite(down.b[0]), 0);
  EXPECT_EQ(slots.embedding().ranks[0], 0);
  EXPECT_EQ(num_finite(slots.embedding().a[0]), 0);
  EXPECT_EQ(num_finite(slots.slices(kQkv)[0].a[0]), 64);
  EXPECT_EQ(down.ranks[1], 4);  // the neighbour is untouched
  EXPECT_EQ(num_finite(down.a[1]), 4 * 128);
}

TEST(SlotWeights, AFillThatHasBegunLeavesNothing) {  // [5.24]
  SlotWeights slots = empty_slots(1);
  slots.fill(0, everything(1).adapter, {1, 1});
  slots.begin_fill(0);
  EXPECT_EQ(slots.content(0), SlotContent{});
  for (const LoraSlice& slice : slots.slices(kQkv)) {
    EXPECT_EQ(slice.ranks[0], 0);
    EXPECT_EQ(num_finite(slice.a[0]) + num_finite(slice.b[0]), 0);
  }
}

TEST(SlotWeights, KnowsWhatFits) {  // [5.10]
  const SlotWeights slots = empty_slots(1);
  EXPECT_TRUE(slots.fits(everything(1).adapter));
  EXPECT_FALSE(slots.fits(attention_only(1, 5).adapter));
  const ModelConfig experts = with_experts(model(), 2, 1);
  EXPECT_FALSE(slots.fits(random_adapter(experts, 1).adapter));  // no place for its modules
}

Matrix<float> delta(const SlotLora& lora, int64_t num_tokens) {
  Matrix<float> x(64, num_tokens), y = Matrix<float>::Zero(128, num_tokens);
  std::vector<int64_t> tokens;
  for (int64_t t = 0; t < num_tokens; ++t) {
    tokens.push_back(t);
    for (int64_t i = 0; i < 64; ++i) x(i, t) = float((i * 7) % 11) - 5;
  }
  lora.add(kQkv, tokens, x, y);
  return y;
}

// [2.11] P71: two adapters change places between two steps of the same requests; each request
// follows its adapter.
TEST(SlotLora, ATableIsMadeForOneStep) {
  const RandomAdapter x = everything(1), y = attention_only(2, 2);
  SlotWeights slots = empty_slots(2);
  slots.fill(0, x.adapter, {1, 1});
  slots.fill(1, y.adapter, {2, 1});
  const Matrix<float> before = delta(SlotLora(slots, {0, 1, kBaseSlot}), 3);
  slots.fill(0, y.adapter, {2, 2});
  slots.fill(1, x.adapter, {1, 2});
  const Matrix<float> after = delta(SlotLora(slots, {1, 0, kBaseSlot}), 3);
  EXPECT_EQ(before, after);
  EXPECT_NE(before.col(0), before.col(1));
  EXPECT_TRUE(before.col(2).isZero());
}

// [1.30] [1.37]: columns of a layer are tokens of the batch, not the first ones.
TEST(SlotLora, ColumnsAreTokens) {
  SlotWeights slots = empty_slots(2);
  slots.fill(1, everything(1).adapter, {1, 1});
  const SlotLora lora(slots, {1, kBaseSlot, kBaseSlot, 1});
  const Matrix<float> x = Matrix<float>::Ones(64, 2);
  Matrix<float> y = Matrix<float>::Zero(256, 2);
  const std::vector<int64_t> tokens{2, 3};
  lora.add({-1, -1, PackedLinear::lm_head}, tokens, x, y);
  EXPECT_TRUE(y.col(0).isZero());
  EXPECT_FALSE(y.col(1).isZero());
}

TEST(SlotLora, EmbeddingOfEveryToken) {  // [1.28]
  const RandomAdapter x = everything(1);
  SlotWeights slots = empty_slots(1);
  slots.fill(0, x.adapter, {1, 1});
  Matrix<float> y = Matrix<float>::Zero(64, 2);
  const std::vector<int32_t> ids{255, 255};
  SlotLora(slots, {0, kBaseSlot}).add_embedding(ids, y);
  const auto* module = x.adapter.find({-1, -1, Projection::embed_tokens});
  float sum = 0;
  for (int64_t j = 0; j < 4; ++j) {
    sum += float(module->a.get(j, 255)) * float(module->b.get(63, j));
  }
  EXPECT_EQ(y(63, 0), module->scaling * sum);
  EXPECT_TRUE(y.col(1).isZero());
}

}  // namespace
}  // namespace loratory::reference
