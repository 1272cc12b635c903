// What slots of fp8 hold of an adapter.
#include "reference/adapter/fp8_weights.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "reference/adapter/dequantize.hpp"
#include "reference/numerics/dtype.hpp"
#include "tests/reference/adapter/adapter_files.hpp"

namespace loratory::reference {
namespace {

constexpr Dtype kFormat = Dtype::f8_e4m3fn;
const std::string kQKey = "base_model.model.model.layers.0.self_attn.q_proj.lora_";

LoraModule only_module(const Adapter& adapter) { return *adapter.find({0, -1, Projection::q}); }

Fp8Weights fp8_of(const std::vector<float>& a) {
  TestTensors tensors;
  tensors.add_numbers(kQKey + "A.weight", {1, 8}, a).add(kQKey + "B.weight", {12, 1});
  return fp8_a(only_module(tensors.load(config_of("\"r\": 1, \"lora_alpha\": 1"))));
}

// [1.50a]: the least power of two of which no number saturates.
TEST(Fp8Weights, FactorsAreTheLeastPowersOfTwo) {
  struct Case {
    float largest, factor;
  };
  for (const auto& [largest, factor] : {Case{448, 1},
                                        {-448, 1},
                                        {448.5F, 2},
                                        {447, 1},
                                        {224, 0.5F},
                                        {225, 1},
                                        {0.875F, 0x1p-9F},
                                        {1, 0x1p-8F},
                                        {0, 1},
                                        {0x1p-120F, 0x1p-126F},
                                        {3e38F, 0x1p120F}}) {
    EXPECT_EQ(fp8_of({0, 0, largest, 0, 0, 0, 0, 0}).factor, factor) << largest;
  }
}

// [1.50a]: to nearest even, also where numbers are subnormal.
TEST(Fp8Weights, NumbersAreRoundedOnce) {
  const Fp8Weights w = fp8_of({448, 17, 19, -27, 0x1p-10F, 3 * 0x1p-10F, -0x1p-6F, -0.0F});
  ASSERT_EQ(w.factor, 1);
  const std::vector<float> expected{448, 16, 20, -28, 0, 0x1p-8F, -0x1p-6F, -0.0F};
  for (Eigen::Index j = 0; j < 8; ++j) EXPECT_EQ(w.numbers()(0, j), expected[size_t(j)]) << j;
  EXPECT_EQ(w.bits[7], 0x80);
}

// [1.50a]: one factor and its bits are kept. Of each row, and of e5m2, they are made anew.
TEST(Fp8Weights, BitsOfOneFactorAreKept) {
  TestTensors tensors;
  std::string bits;
  for (int i = 0; i < 16; ++i) bits.push_back(char(i * 15));  // no NaN
  tensors.add_bytes(kQKey + "A.weight", StorageDtype::f8e4m3, {2, 8}, bits)
      .add_bytes(kQKey + "B.weight", StorageDtype::f8e4m3, {12, 2}, bits + std::string(8, '\x38'))
      .add_numbers(kQKey + "A.weight_scale", {1}, {0.3F})
      .add_numbers(kQKey + "B.weight_scale", {12}, {1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  const Adapter adapter = tensors.load();
  const Fp8Weights a = fp8_a(only_module(adapter)), b = fp8_b(only_module(adapter));
  EXPECT_EQ(a.factor, 0.3F);
  for (size_t i = 0; i < bits.size(); ++i) EXPECT_EQ(char(a.bits[i]), bits[i]) << i;
  EXPECT_EQ(std::exp2(std::round(std::log2(b.factor))), b.factor);
  const Matrix<float> numbers = dequantized_b(only_module(adapter));
  for (Eigen::Index i = 0; i < 12; ++i) {
    for (Eigen::Index j = 0; j < 2; ++j) {
      const double kept = round_to(kFormat, double(numbers(i, j)) / double(b.factor));
      EXPECT_EQ(b.numbers()(i, j), float(kept) * b.factor);
    }
  }
}

}  // namespace
}  // namespace loratory::reference
