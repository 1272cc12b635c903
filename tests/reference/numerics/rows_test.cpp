// The fast elements, rows and panels are the slow ones, bit for bit.
#include "reference/numerics/rows.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "reference/numerics/matrix.hpp"
#include "reference/numerics/panels.hpp"

namespace loratory::reference {
namespace {

constexpr Dtype kDtypes[] = {Dtype::f32,       Dtype::f16,     Dtype::bf16,
                             Dtype::f8_e4m3fn, Dtype::f8_e5m2, Dtype::i8};

bool same(double left, double right) {
  if (std::isnan(left)) return std::isnan(right) && std::signbit(left) == std::signbit(right);
  return std::bit_cast<uint64_t>(left) == std::bit_cast<uint64_t>(right);
}

// All codes of the narrow formats; of f32 random ones, its subnormal numbers among them.
std::vector<uint32_t> codes(Dtype dtype) {
  std::vector<uint32_t> all;
  if (dtype != Dtype::f32) {
    for (uint32_t c = 0; c < 1U << (8 * size_bytes(dtype)); ++c) all.push_back(c);
    return all;
  }
  std::mt19937 engine(1);
  for (int i = 0; i < 100'000; ++i) all.push_back(uint32_t(engine()) >> (i % 3 == 0 ? 9 : 0));
  for (const uint32_t c : {0U, 1U << 31, 0x7F80'0000U, 0xFF80'0000U, 0x7FC0'0001U, 0xFFFF'FFFFU}) {
    all.push_back(c);
  }
  return all;
}

TEST(Rows, LoadElementsIsLoad) {
  for (const Dtype dtype : kDtypes) {
    const size_t size = size_bytes(dtype);
    const std::vector<uint32_t> bits = codes(dtype);
    for (const size_t stride : {1, 3}) {
      std::vector<std::byte> bytes(bits.size() * size * stride + 1);
      const std::byte* const first = bytes.data() + 1;  // aligned to nothing
      for (size_t i = 0; i < bits.size(); ++i) {
        std::memcpy(bytes.data() + 1 + i * stride * size, &bits[i], size);
      }
      std::vector<float> floats(bits.size());
      std::vector<double> doubles(bits.size());
      load_elements(dtype, first, int64_t(stride), std::span(floats));
      load_elements(dtype, first, int64_t(stride), std::span(doubles));
      for (size_t i = 0; i < bits.size(); ++i) {
        const double expected = load(dtype, first + i * stride * size);
        ASSERT_TRUE(same(floats[i], expected)) << name(dtype) << ' ' << bits[i];
        ASSERT_TRUE(same(doubles[i], expected)) << name(dtype) << ' ' << bits[i];
      }
    }
  }
}

// Every number of the format, the ties between neighbours, and the floats around both.
std::vector<float> numbers_around(Dtype dtype) {
  std::vector<float> all;
  const auto infinity = std::numeric_limits<float>::infinity();
  const auto add = [&](float v) {
    for (const float w : {v, std::nextafter(v, infinity), std::nextafter(v, -infinity)}) {
      all.push_back(w), all.push_back(-w);
    }
  };
  for (const uint32_t code : codes(dtype)) {
    const auto value = float(decode(dtype, code));
    add(value);
    if (dtype != Dtype::f32) add(float((double(value) + decode(dtype, code + 1)) / 2));
  }
  for (const double v : {65504.0, 65519.99, 65520.0, 65536.0, 1e6, 3.4e38}) add(float(v));
  return all;
}

TEST(Rows, StoreElementsIsStoreAndRoundElementsRoundTo) {
  for (const Dtype dtype : kDtypes) {
    const std::vector<float> values = numbers_around(dtype);
    const size_t size = size_bytes(dtype);
    for (const size_t stride : {1, 2}) {
      std::vector<std::byte> bytes(values.size() * size * stride + 1, std::byte{0x5A});
      store_elements(dtype, bytes.data() + 1, int64_t(stride), values);
      for (size_t i = 0; i < values.size(); ++i) {
        uint32_t bits = 0;
        std::memcpy(&bits, bytes.data() + 1 + i * stride * size, size);
        ASSERT_EQ(bits, encode(dtype, values[i])) << name(dtype) << ' ' << values[i];
        if (stride == 2) {
          ASSERT_EQ(bytes[1 + (2 * i + 1) * size], std::byte{0x5A});
        }
      }
    }
    std::vector<float> rounded = values;
    round_elements(dtype, rounded);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_TRUE(same(rounded[i], round_to(dtype, values[i]))) << name(dtype) << ' ' << values[i];
    }
  }
}

// f32 has a short cut in encode(): against the hardware's own conversion of doubles around floats.
TEST(Rows, EncodingF32RoundsOnce) {
  std::mt19937_64 engine(2);
  for (int i = 0; i < 100'000; ++i) {
    const auto low = std::bit_cast<float>(uint32_t(engine() & 0x7EFF'FFFF) >> (i % 3 == 0 ? 9 : 0));
    const float high = std::nextafter(low, std::numeric_limits<float>::infinity());
    const double tie = (double(low) + double(high)) / 2;
    const auto code = std::bit_cast<uint32_t>(low);
    ASSERT_EQ(encode(Dtype::f32, std::nextafter(tie, 0.0)), code);
    ASSERT_EQ(encode(Dtype::f32, tie), code + code % 2);
    ASSERT_EQ(encode(Dtype::f32, -std::nextafter(tie, 1e300)), (code + 1) | 1U << 31);
  }
}

Tensor random_tensor(Dtype dtype, Extents shape, Extents strides) {
  Tensor t(dtype, std::move(shape), std::move(strides));
  std::mt19937_64 engine(3);
  for (size_t i = 0; i < t.bytes().size(); i += size_bytes(dtype)) {
    store(dtype, t.bytes().data() + i, double(engine() >> 12) * 0x1p-52 - 0.5);
  }
  return t;
}

// [1.16]: one sum at a time, in the order of the definition.
std::vector<float> multiply_one_by_one(const ConstTensorView& matrix, int64_t num_rows,
                                       int64_t num_columns, const float* vector) {
  std::vector<float> out;
  for (int64_t i = 0; i < num_rows; ++i) {
    float sum = 0;
    for (int64_t j = 0; j < num_columns; ++j) sum += float(matrix.get(i, j)) * vector[j];
    out.push_back(sum);
  }
  return out;
}

// [1.16] [1.19]: products in panels give the bits of the definition, for every number of rows
// beside full panels and of vectors beside full fours; what lies outside the part is NaN.
TEST(Panels, MultiplyInOrderKeepsTheOrder) {
  for (const int64_t num_rows : {0, 1, 5, 15, 16, 17, 33}) {
    for (const int64_t num_columns : {0, 1, 63, 64, 65, 300}) {
      Tensor t = random_tensor(Dtype::f32, {40, 310}, {311, 1});
      for (int64_t i = 0; i < 40; ++i) {
        for (int64_t j = 0; j < 310; ++j) {
          if (i >= num_rows || j >= num_columns) t.set(std::nan(""), i, j);
        }
      }
      const Panels panels = read_panels(t.view(), num_rows, num_columns);
      const Matrix<float> matrix = read_matrix<float>(t.view(), num_rows, num_columns);
      for (const int64_t num_vectors : {0, 1, 4, 7}) {
        Vector<float> vectors = Vector<float>::Random(num_vectors * num_columns);
        const int64_t width = panels.num_panels() * Panels::kRows;
        std::vector<float> out(size_t(num_vectors * width));
        multiply_in_order(panels, vectors.data(), num_vectors, out.data());
        std::vector<float> plain(out.size());
        multiply_in_order_without_avx2(panels, vectors.data(), num_vectors, plain.data());
        ASSERT_EQ(plain, out);
        for (int64_t v = 0; v < num_vectors; ++v) {
          const Vector<float> one = vectors.segment(v * num_columns, num_columns);
          const auto expected = multiply_one_by_one(t.view(), num_rows, num_columns, one.data());
          const Vector<float> as_matrix = multiply_in_order(matrix, one);
          for (int64_t i = 0; i < num_rows; ++i) {
            ASSERT_EQ(out[size_t(v * width + i)], expected[size_t(i)]) << num_rows << ' ' << i;
            ASSERT_EQ(as_matrix(i), expected[size_t(i)]);
          }
        }
      }
    }
  }
}

TEST(RowsDeathTest, APartLiesInsideItsRow) {
  const Tensor t(Dtype::f32, {2, 3});
  std::vector<float> four(4), one(1);
  EXPECT_DEATH(read_row(t.view(), 0, 0, std::span(four)), "inside the row");
  EXPECT_DEATH(read_row(t.view(), 2, 0, std::span(one)), "inside its axis");
  EXPECT_DEATH(read_row(t.view(), 0, 3, std::span(one)), "inside the row");
}

}  // namespace
}  // namespace loratory::reference
