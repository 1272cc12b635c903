// The image of a slot against reference::SlotWeights, number for number.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <new>

#include "fuzz/support/random_model.hpp"
#include "gpu/engine/fp8_matrix.hpp"
#include "gpu/engine/slot_layout.hpp"
#include "reference/adapter/fp8_weights.hpp"
#include "reference/base/input_error.hpp"
#include "reference/model/model_config.hpp"
#include "reference/model/slot_weights.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::LinearRef;
using reference::LoraSlice;
using reference::ModelConfig;
using reference::PackedLinear;
using reference::Projection;
using reference::RandomAdapter;
using reference::SlotWeights;

constexpr int64_t kMaxRank = 5;

struct Case {
  ModelConfig config;
  RandomAdapter adapter;
};

Case dense_case(uint64_t seed) {
  const ModelConfig config = dense(reference::random_model_config(seed));
  return {config, random_adapter(config, seed, reference::random_adapter_options(seed))};
}

/// Layers with experts, or some of them.
Case expert_case(uint64_t seed) {
  ModelConfig config = dense(reference::random_model_config(seed));
  config = with_experts(config, 1 + int64_t(seed % 5), 1, seed % 2 == 0);
  config.router_has_lora = false;  // for which slots have no room
  return {config, random_adapter(config, seed, reference::random_adapter_options(seed))};
}

LoraSlice reference_slice(const SlotWeights& slots, const reference::ModuleId& id) {
  if (id.projection == Projection::embed_tokens) return slots.embedding();
  for (const PackedLinear kind : {PackedLinear::qkv, PackedLinear::o, PackedLinear::gate_up,
                                  PackedLinear::down, PackedLinear::lm_head}) {
    const auto all = projections(kind);
    const auto it = std::ranges::find(all, id.projection);
    if (it != all.end()) {
      return slots.slices({id.layer, id.expert, kind})[size_t(it - all.begin())];
    }
  }
  ADD_FAILURE() << to_string(id);
  return slots.embedding();
}

template <typename T>
T value_at(const std::vector<std::byte>& image, int64_t offset) {
  T out;
  std::memcpy(&out, image.data() + offset, sizeof out);
  return out;
}

// How many of the numbers of a slot's matrix differ from the reference's, rounded once.
int64_t num_different(const std::vector<std::byte>& image, int64_t offset, Dtype dtype,
                      const reference::ConstTensorView& expected) {
  int64_t count = 0;
  for (int64_t i = 0; i < expected.size(0); ++i) {
    for (int64_t j = 0; j < expected.size(1); ++j) {
      const int64_t index = i * expected.size(1) + j;
      const double value = dtype == Dtype::f32
                               ? double(value_at<float>(image, offset + index * 4))
                               : decode(dtype, value_at<uint16_t>(image, offset + index * 2));
      const double wanted = expected.get(i, j);
      const bool same = std::isnan(wanted) ? std::isnan(value) : value == round_to(dtype, wanted);
      count += !same;
    }
  }
  return count;
}

// [5.9]: the same weights, ranks and scalings, rank 0 for what is absent, NaN where nothing is.
TEST(SlotImage, EqualsTheSlotOfTheReference) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    const Case c = seed <= 40 ? dense_case(seed) : expert_case(seed);
    const auto shapes = base_model_shapes(c.config);
    constexpr Dtype kDtypes[] = {Dtype::bf16, Dtype::f16, Dtype::f32};
    const Dtype dtype = kDtypes[seed % 3];
    const SlotLayout layout(shapes, {}, kMaxRank, dtype);
    SlotWeights slots(shapes, 1, kMaxRank);
    ASSERT_EQ(layout.problem(c.adapter.adapter), "");
    ASSERT_TRUE(slots.fits(c.adapter.adapter));
    slots.fill(0, c.adapter.adapter, {1, 1});
    std::vector<std::byte> image(size_t(layout.bytes()), std::byte{7});
    write_slot_image(layout, c.adapter.adapter, image);
    for (size_t i = 0; i < layout.modules().size(); ++i) {
      const SlotModule& m = layout.modules()[i];
      SCOPED_TRACE(to_string(m.id));
      const LoraSlice expected = reference_slice(slots, m.id);
      const auto index = int64_t(i);
      EXPECT_EQ(value_at<int32_t>(image, layout.ranks_offset() + 4 * index), expected.ranks[0]);
      EXPECT_EQ(value_at<float>(image, layout.scalings_offset() + 4 * index), expected.scalings[0]);
      EXPECT_EQ(num_different(image, m.a_offset, dtype, expected.a[0]), 0);
      EXPECT_EQ(num_different(image, m.b_offset, dtype, expected.b[0]), 0);
    }
  }
}

// The same matrix with three numbers of rubbish behind each row.
reference::ConstTensorView spread_out(const reference::ConstTensorView& rows,
                                      std::vector<std::byte>& memory) {
  const auto size = int64_t(size_bytes(rows.dtype));
  const int64_t stride = rows.size(1) + 3;
  memory.assign(size_t(rows.size(0) * stride * size), std::byte{0x55});
  for (int64_t i = 0; i < rows.size(0); ++i) {
    for (int64_t j = 0; j < rows.size(1); ++j) {
      const std::byte* const from = rows[i].data + j * rows.strides[1] * size;
      std::memcpy(memory.data() + (i * stride + j) * size, from, size_t(size));
    }
  }
  return {rows.dtype, memory.data(), rows.shape, {stride, 1}};
}

TEST(SlotImage, RowsMayLieApart) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    const Case c = dense_case(seed);
    reference::Adapter apart = c.adapter.adapter;
    std::vector<std::vector<std::byte>> memory(2 * apart.modules.size());
    for (size_t i = 0; i < apart.modules.size(); ++i) {
      reference::LoraModule& module = apart.modules[i];
      module.a = spread_out(module.a, memory[2 * i]);
      module.b = spread_out(module.b, memory[2 * i + 1]);
    }
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f32}) {
      const SlotLayout layout(base_model_shapes(c.config), {}, apart.rank, dtype);
      std::vector<std::byte> image(size_t(layout.bytes())), expected(image.size(), std::byte{7});
      write_slot_image(layout, c.adapter.adapter, expected);
      write_slot_image(layout, apart, image);
      EXPECT_EQ(image, expected);
    }
  }
}

// Modules are written by threads, out of which nothing may be thrown.
TEST(SlotImage, WhatAThreadThrowsIsThrown) {
  const Case c = dense_case(1);
  reference::Adapter huge = c.adapter.adapter;
  reference::ConstTensorView& a = huge.modules.front().a;
  a = {a.dtype, a.data, {2, int64_t{1} << 62}, {0, 0}};
  const SlotLayout layout(base_model_shapes(c.config), {}, huge.rank, Dtype::bf16);
  std::vector<std::byte> image(size_t(layout.bytes()));
  EXPECT_THROW(write_slot_image(layout, huge, image), std::bad_alloc);
}

// --- fp8 ---------------------------------------------------------------------------------------

constexpr int64_t kFp8Rank = 16;

// Rows of `expected` at their places in the image; behind them NaN, as in whole rows that it lacks.
int64_t num_different(const std::vector<std::byte>& image, int64_t offset, int64_t num_rows,
                      int64_t row_size, const reference::Fp8Weights& expected) {
  int64_t count = 0;
  for (int64_t i = 0; i < num_rows; ++i) {
    for (int64_t j = 0; j < row_size; ++j) {
      const bool exists = i < expected.num_rows && j < expected.num_columns;
      const uint8_t wanted =
          exists ? expected.bits[size_t(i * expected.num_columns + j)] : uint8_t(0xFF);
      count += value_at<uint8_t>(image, offset + i * row_size + j) != wanted;
    }
  }
  return count;
}

// [1.50a] [5.9]: bits and factors of the reference, NaN where nothing is.
TEST(SlotImage, OfFp8HasTheBitsOfTheReference) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    const Case c = dense_case(seed);
    const SlotLayout layout(base_model_shapes(c.config), {}, kMaxRank, Dtype::f8_e4m3fn);
    ASSERT_EQ(layout.max_rank(), kFp8Rank);
    std::vector<std::byte> image(size_t(layout.bytes()), std::byte{7});
    write_slot_image(layout, c.adapter.adapter, image);
    const auto num_modules = int64_t(layout.modules().size());
    for (int64_t i = 0; i < num_modules; ++i) {
      const SlotModule& m = layout.modules()[size_t(i)];
      SCOPED_TRACE(to_string(m.id));
      const reference::LoraModule* const from = c.adapter.adapter.find(m.id);
      const auto a = from == nullptr ? reference::Fp8Weights{} : fp8_a(*from);
      const auto b = from == nullptr ? reference::Fp8Weights{} : fp8_b(*from);
      EXPECT_EQ(num_different(image, m.a_offset, kFp8Rank, m.num_in, a), 0);
      EXPECT_EQ(num_different(image, m.b_offset, m.num_out, kFp8Rank, b), 0);
      EXPECT_EQ(value_at<int32_t>(image, layout.ranks_offset() + 4 * i), from ? from->rank : 0);
      if (from == nullptr) continue;
      EXPECT_EQ(value_at<float>(image, layout.factors_offset() + 4 * i), a.factor);
      EXPECT_EQ(value_at<float>(image, layout.factors_offset() + 4 * (num_modules + i)), b.factor);
    }
  }
}

float fp8_of(const std::vector<float>& numbers, std::vector<std::byte>& out) {
  reference::Tensor t(Dtype::f32, {1, int64_t(numbers.size())});
  std::memcpy(t.bytes().data(), numbers.data(), numbers.size() * 4);
  out.assign(numbers.size(), std::byte{0});
  return write_fp8(std::as_const(t).view(), {}, 1, out.data());
}

// [1.50a]: the fast rounding is encode(): every bit pattern, the middles between two of them, and
// the numbers next to these.
TEST(Fp8Matrix, RoundsAsEncode) {
  std::vector<float> numbers{448};
  for (uint32_t bits = 0; bits < 0x7E; ++bits) {
    const auto low = float(decode(Dtype::f8_e4m3fn, bits));
    const auto high = float(decode(Dtype::f8_e4m3fn, bits + 1));
    for (const float n : {low, (low + high) / 2}) {
      for (const float v : {n, std::nextafter(n, 0.0F), std::nextafter(n, 448.0F)}) {
        numbers.insert(numbers.end(), {v, -v});
      }
    }
  }
  std::vector<std::byte> out;
  ASSERT_EQ(fp8_of(numbers, out), 1);
  for (size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(uint8_t(out[i]), encode(Dtype::f8_e4m3fn, double(numbers[i]))) << numbers[i];
  }
}

TEST(Fp8Matrix, FactorsAreTheLeastPowersOfTwo) {
  std::vector<std::byte> out;
  for (int e = -126; e <= 110; ++e) {
    const float factor = std::ldexp(1.0F, e), largest = 448 * factor;
    EXPECT_EQ(fp8_of({largest}, out), factor);
    EXPECT_EQ(fp8_of({std::nextafter(largest, INFINITY)}, out), 2 * factor);
  }
  EXPECT_EQ(fp8_of({0}, out), 1);
  EXPECT_EQ(fp8_of({0x1p-149F}, out), 0x1p-126F);
}

TEST(SlotLayout, OfFp8HoldsNoExperts) {
  const auto shapes = base_model_shapes(expert_case(1).config);
  EXPECT_THROW(SlotLayout(shapes, {}, 4, Dtype::f8_e4m3fn), InputError);
  const SlotLayout without(shapes, {.experts = false}, 4, Dtype::f8_e4m3fn);
  EXPECT_TRUE(without.has_factors());
}

// What the kernels for experts read: weights of an expert at a fixed distance from those of the one
// before, ranks and scalings of a projection [slots, experts], and no place of a table twice.
TEST(SlotLayout, ExpertsLieAtFixedDistances) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    const Case c = expert_case(seed);
    const SlotLayout layout(base_model_shapes(c.config), {}, kMaxRank, Dtype::bf16);
    constexpr int32_t kMaxLoras = 3;
    std::vector<int> used(layout.modules().size() * kMaxLoras, 0);
    for (int64_t i = 0; i < int64_t(layout.modules().size()); ++i) {
      const SlotModule& m = layout.modules()[size_t(i)];
      const SlotLayout::TablePlace place = layout.table_place(i, kMaxLoras);
      for (int32_t s = 0; s < kMaxLoras; ++s) ++used.at(size_t(place.begin + s * place.stride));
      if (m.id.expert < 0) {
        EXPECT_EQ(place.begin, i * kMaxLoras);
        EXPECT_EQ(place.stride, 1);
        continue;
      }
      const reference::ModuleId first{m.id.layer, 0, m.id.projection};
      const SlotModule& of_first = layout.modules()[size_t(layout.find(first))];
      const int64_t distance = m.id.expert * layout.expert_bytes(first);
      EXPECT_EQ(m.a_offset, of_first.a_offset + distance);
      EXPECT_EQ(m.b_offset, of_first.b_offset + distance);
      EXPECT_EQ(place.stride, c.config.num_experts);
      EXPECT_EQ(place.begin, layout.table_place(layout.find(first), kMaxLoras).begin + m.id.expert);
    }
    EXPECT_EQ(std::ranges::count(used, 1), int64_t(used.size()));
  }
}

TEST(SlotImage, MatricesAreApartAndAligned) {
  const Case c = dense_case(3);
  const SlotLayout layout(base_model_shapes(c.config), {}, kMaxRank, Dtype::bf16);
  int64_t end = 0;
  for (const SlotModule& m : layout.modules()) {
    EXPECT_EQ(m.a_offset % 256, 0);
    EXPECT_EQ(m.b_offset % 256, 0);
    EXPECT_GE(m.a_offset, end);
    EXPECT_GE(m.b_offset, m.a_offset + kMaxRank * m.num_in * 2);
    end = m.b_offset + kMaxRank * m.num_out * 2;
  }
  EXPECT_GE(layout.ranks_offset(), end);
  EXPECT_EQ(layout.bytes() % 256, 0);
}

TEST(SlotLayout, SaysWhatHasNoRoom) {
  const Case c = dense_case(3);
  const auto shapes = base_model_shapes(c.config);
  const RandomAdapter head =
      random_adapter(c.config, 1, {.rank = 4, .attention = false, .mlp = false, .lm_head = true});
  const SlotLayout narrow(shapes, {.lm_head = false}, kMaxRank, Dtype::bf16);
  EXPECT_EQ(narrow.problem(head.adapter), "slots have no room for lm_head");
  const SlotLayout low(shapes, {}, 3, Dtype::bf16);
  EXPECT_EQ(low.problem(head.adapter), "lm_head has rank 4, slots have room for 3");
  EXPECT_EQ(narrow.find({-1, -1, Projection::lm_head}), -1);
  EXPECT_EQ(low.find({-1, -1, Projection::lm_head}), 1);
}

}  // namespace
}  // namespace loratory::gpu
