#include "reference/adapter/dequantize.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "tests/reference/adapter/adapter_files.hpp"

namespace loratory::reference {
namespace {

const std::string kLayer = "base_model.model.model.layers.0.";

// Bytes 0, 1, 2, ... modulo 120: no NaN in any fp8 format, all different along short rows.
std::string bytes(int64_t count) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) text.push_back(char(i % 120));
  return text;
}

int64_t count(const Extents& shape) {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

// A module with e4m3 A and e5m2 B; factor i of a scale is 1 + i.
TestTensors fp8_module(const std::string& path, const Extents& a, const Extents& b,
                       const Extents& a_scale, const Extents& b_scale) {
  TestTensors tensors;
  tensors.add_bytes(kLayer + path + ".lora_A.weight", StorageDtype::f8e4m3, a, bytes(count(a)))
      .add_bytes(kLayer + path + ".lora_B.weight", StorageDtype::f8e5m2, b, bytes(count(b)))
      .add(kLayer + path + ".lora_A.weight_scale", a_scale)
      .add(kLayer + path + ".lora_B.weight_scale", b_scale);
  return tensors;
}

AdapterConfig rank(int64_t r) {
  return config_of("\"r\": " + std::to_string(r) + ", \"lora_alpha\": 1");
}

// Number `at` of the bytes above.
float number(Dtype dtype, int64_t at) { return float(decode(dtype, uint32_t(at % 120))); }

TEST(Dequantize, WideTypesAsTheyAre) {
  TestTensors tensors;
  tensors.add_pair("model.layers.0.self_attn.q_proj", 12, 8);
  const Adapter adapter = tensors.load();
  const LoraModule& q = *adapter.find({0, -1, Projection::q});
  EXPECT_EQ(dequantized_a(q)(1, 7), 16);
  EXPECT_EQ(dequantized_b(q)(11, 1), 123);
  EXPECT_TRUE(q.a_scale.factors.empty());
}

// [1.43], [1.44]: one factor, one a row, and blocks whose two counts differ [1.48]; the last
// blocks are cut short. up_proj: A [4, 8], B [14, 4].
TEST(Dequantize, EveryGranularity) {
  struct Case {
    Extents a_scale, b_scale;
    int64_t a_rows, a_columns, b_rows, b_columns, a_across, b_across;  // sizes of the groups
  };
  for (const Case& c : {Case{{}, {1, 1}, 4, 8, 14, 4, 1, 1},
                        {{4}, {14, 1}, 1, 8, 1, 4, 1, 1},
                        {{2, 4}, {4, 2}, 2, 2, 4, 2, 4, 2},
                        {{1, 2}, {7, 4}, 4, 4, 2, 1, 2, 4},
                        {{4, 1}, {2, 1}, 1, 8, 8, 4, 1, 1}}) {
    TestTensors tensors = fp8_module("mlp.up_proj", {4, 8}, {14, 4}, c.a_scale, c.b_scale);
    const Adapter adapter = tensors.load(rank(4));
    const LoraModule& up = *adapter.find({0, -1, Projection::up});
    const Matrix<float> a = dequantized_a(up), b = dequantized_b(up);
    for (int64_t j = 0; j < 4; ++j) {
      for (int64_t k = 0; k < 8; ++k) {
        const auto factor = float(1 + j / c.a_rows * c.a_across + k / c.a_columns);
        EXPECT_EQ(a(j, k), number(Dtype::f8_e4m3fn, j * 8 + k) * factor);
      }
      for (int64_t n = 0; n < 14; ++n) {
        const auto factor = float(1 + n / c.b_rows * c.b_across + j / c.b_columns);
        EXPECT_EQ(b(n, j), number(Dtype::f8_e5m2, n * 4 + j) * factor);
      }
    }
  }
}

// q, k, v of 12, 6 and 6 rows under blocks of 8: the slices cut through them.
TEST(Dequantize, SlicesThatCutThroughBlocks) {
  TestTensors tensors = fp8_module("self_attn.qkv_proj", {2, 8}, {24, 2}, {1}, {3, 2});
  const Adapter adapter = tensors.load();
  int64_t row = 0;
  for (const auto& [projection, rows] :
       {std::pair{Projection::q, 12}, {Projection::k, 6}, {Projection::v, 6}}) {
    const Matrix<float> b = dequantized_b(*adapter.find({0, -1, projection}));
    ASSERT_EQ(b.rows(), rows);
    for (int64_t n = 0; n < rows; ++n, ++row) {
      for (int64_t j = 0; j < 2; ++j) {
        const auto factor = float(1 + row / 8 * 2 + j);
        EXPECT_EQ(b(n, j), number(Dtype::f8_e5m2, row * 2 + j) * factor);
      }
    }
  }
  EXPECT_EQ(adapter.find({0, -1, Projection::q})->b_scale.group_rows, 8) << "starts a block";
  EXPECT_EQ(adapter.find({0, -1, Projection::k})->b_scale.group_rows, 1) << "cuts one";
  EXPECT_EQ(adapter.find({0, -1, Projection::v})->b_scale.group_rows, 6) << "inside of one";
}

// Three axes: one factor for all, one an expert, one a row, blocks; A shared or not. The first
// axis stands also where it is 1: [1, 4] is one factor for each of 4 rows, not 4 blocks of columns.
TEST(Dequantize, ExpertsHaveTheirOwnScales) {
  struct Case {
    int64_t num_a;
    Extents a_scale, b_scale;
    int64_t a_rows, a_columns, b_rows, b_columns, a_across, b_across;
  };
  for (const Case& c : {Case{6, {6}, {6}, 4, 8, 5, 4, 1, 1},
                        {1, {1, 4}, {6, 5}, 1, 8, 1, 4, 1, 1},
                        {1, {1, 1, 4}, {6, 3, 4}, 4, 2, 2, 1, 4, 4},
                        {6, {6, 2, 4}, {1}, 2, 2, 5, 4, 4, 1}}) {
    TestTensors tensors =
        fp8_module("mlp.experts.w1", {c.num_a, 4, 8}, {6, 5, 4}, c.a_scale, c.b_scale);
    const Adapter adapter = tensors.load(rank(4));
    const int64_t a_each = c.num_a == 1 ? 0 : count(c.a_scale) / 6;
    const int64_t b_each = count(c.b_scale) / 6;
    for (int64_t e = 0; e < 6; ++e) {
      const LoraModule& gate = *adapter.find({0, e, Projection::gate});
      const Matrix<float> a = dequantized_a(gate), b = dequantized_b(gate);
      for (int64_t j = 0; j < 4; ++j) {
        for (int64_t k = 0; k < 8; ++k) {
          const int64_t at = e * a_each + j / c.a_rows * c.a_across + k / c.a_columns;
          const int64_t row = (c.num_a == 1 ? 0 : e * 4) + j;
          EXPECT_EQ(a(j, k), number(Dtype::f8_e4m3fn, row * 8 + k) * float(1 + at));
        }
        for (int64_t n = 0; n < 5; ++n) {
          const int64_t at = e * b_each + n / c.b_rows * c.b_across + j / c.b_columns;
          EXPECT_EQ(b(n, j), number(Dtype::f8_e5m2, (e * 5 + n) * 4 + j) * float(1 + at));
        }
      }
    }
  }
}

// PEFT's target_parameters: A [E·r, K]; B [N, r·E] with the expert fastest, every second row up.
TEST(Dequantize, ParametersOfInterleavedExperts) {
  BaseModelShapes shapes = small_model();
  shapes.interleaved_gate_up = true;
  TestTensors tensors = fp8_module("mlp.experts.base_layer", {24, 8}, {10, 24}, {6, 2}, {3, 3});
  tensors.add(kLayer + "mlp.experts.lora_A.weight", {24, 5})
      .add(kLayer + "mlp.experts.lora_B.weight", {8, 24});
  const Adapter adapter = tensors.load(rank(4), {}, shapes);
  for (int64_t e = 0; e < 6; ++e) {
    const LoraModule& up = *adapter.find({0, e, Projection::up});
    const Matrix<float> a = dequantized_a(up), b = dequantized_b(up);
    for (int64_t j = 0; j < 4; ++j) {
      for (int64_t k = 0; k < 8; ++k) {
        const auto factor = float(1 + (e * 4 + j) / 4 * 2 + k / 4);
        EXPECT_EQ(a(j, k), number(Dtype::f8_e4m3fn, (e * 4 + j) * 8 + k) * factor);
      }
      for (int64_t n = 0; n < 5; ++n) {
        const int64_t row = 2 * n + 1, column = j * 6 + e;
        const auto factor = float(1 + row / 4 * 3 + column / 8);
        EXPECT_EQ(b(n, j), number(Dtype::f8_e5m2, row * 24 + column) * factor);
      }
    }
  }
}

// A factor and a weight that are finite, and a product that is not; with NaN factors [4.16].
TEST(Dequantize, FactorsThatOverflowAreRefused) {
  for (const float factor : {1e37F, std::numeric_limits<float>::quiet_NaN()}) {
    TestTensors tensors;
    tensors.add_bytes(kLayer + "mlp.up_proj.lora_A.weight", StorageDtype::f8e4m3, {2, 8}, bytes(16))
        .add_bytes(kLayer + "mlp.up_proj.lora_B.weight", StorageDtype::f8e4m3, {14, 2},
                   std::string(28, '\x7E'))
        .add(kLayer + "mlp.up_proj.lora_A.weight_scale", {1})
        .add_numbers(kLayer + "mlp.up_proj.lora_B.weight_scale", {1}, {factor});
    EXPECT_EQ(tensors.refusal(), "E_NONFINITE");
  }
}

}  // namespace
}  // namespace loratory::reference
