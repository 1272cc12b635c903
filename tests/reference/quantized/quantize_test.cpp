#include "reference/quantized/quantize.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/base/input_error.hpp"

namespace loratory::reference {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

Tensor matrix(const std::vector<std::vector<double>>& rows) {
  Tensor t(Dtype::f32, {int64_t(rows.size()), int64_t(rows[0].size())});
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t j = 0; j < rows[i].size(); ++j) t.set(rows[i][j], int64_t(i), int64_t(j));
  }
  return t;
}

// [1.50]: by channel; the largest of a row meets 448, a row of zeros has factor 1 and bytes 0.
TEST(Quantize, ChannelsOfAMatrix) {
  const Tensor weight = matrix({{-896, 2, 0.75, 0}, {-0.0, 0, -0.0, 0}, {1e-38, -1e-39, 0, 0}});
  const QuantizedMatrix q = quantize_channels(weight.view(), Dtype::f8_e4m3fn);
  EXPECT_EQ(q.scale.shape(), Extents{3});
  EXPECT_EQ(q.scale.get(0), 2);
  EXPECT_EQ(q.bits.get(0, 0), -448);
  EXPECT_EQ(q.bits.get(0, 1), 1);
  EXPECT_EQ(q.bits.get(0, 2), 0.375);
  EXPECT_EQ(q.scale.get(1), 1);
  for (int64_t k = 0; k < 4; ++k) EXPECT_EQ(*q.bits.view().address(1, k), std::byte{0}) << k;
  EXPECT_EQ(q.scale.get(2), 0x1p-126) << "1e-38 / 448 lies below it";
  EXPECT_EQ(q.bits.get(2, 0), round_to(Dtype::f8_e4m3fn, float(1e-38) / 0x1p-126));
}

// [1.50] [1.51]: each format has its own largest number.
TEST(Quantize, EveryFormatUsesItsRange) {
  const Tensor weight = matrix({{127, -63.4, 0.5, 0}});
  const QuantizedMatrix i8 = quantize_channels(weight.view(), Dtype::i8);
  EXPECT_EQ(i8.scale.get(0), 1);
  EXPECT_EQ(i8.bits.get(0, 0), 127);
  EXPECT_EQ(i8.bits.get(0, 1), -63);
  EXPECT_EQ(i8.bits.get(0, 2), 0) << "to even";
  const QuantizedMatrix e5m2 = quantize_channels(weight.view(), Dtype::f8_e5m2);
  EXPECT_EQ(e5m2.scale.get(0), double(127.0F / 57344.0F));
  EXPECT_EQ(e5m2.bits.get(0, 0), 57344);
}

// [1.47]: saturating; what is not finite keeps its place and does not touch the factor.
TEST(Quantize, NaNAndInfinityStayWhereTheyAre) {
  const Tensor v = matrix({{kNan, 2, -kInf}, {1, 2, 4}});
  const std::vector<int32_t> widths{3, 3};
  for (const Dtype dtype : {Dtype::f8_e4m3fn, Dtype::f8_e5m2, Dtype::i8}) {
    Tensor bits(dtype, {2, 3}), scale(Dtype::f32, {2, 1});
    quantize({.v = v.view(), .widths = widths, .bits = bits.view(), .scale = scale.view()});
    EXPECT_EQ(scale.get(0, 0), double(2.0F / float(largest_finite(dtype))));
    EXPECT_EQ(std::isnan(bits.get(0, 0)), dtype != Dtype::i8);
    EXPECT_EQ(bits.get(0, 1), largest_finite(dtype));
    EXPECT_EQ(bits.get(0, 2), dtype == Dtype::i8 ? -128 : -largest_finite(dtype));
    EXPECT_EQ(bits.get(1, 2), largest_finite(dtype));
  }
}

// [1.47]: the shape of the scale says what shares a factor.
TEST(Quantize, TensorTokenAndBlock) {
  const Tensor v = matrix({{448, 1, 2}, {4, 224, 896}});
  const std::vector<int32_t> widths{3, 3};
  const auto factors = [&](const Extents& shape, int64_t group) {
    Tensor bits(Dtype::f8_e4m3fn, {2, 3}), scale(Dtype::f32, shape);
    quantize({.v = v.view(),
              .widths = widths,
              .group_k = group,
              .bits = bits.view(),
              .scale = scale.view()});
    std::vector<double> numbers;
    for (size_t i = 0; i * 4 < scale.bytes().size(); ++i) {
      numbers.push_back(load(Dtype::f32, scale.bytes().data() + i * 4));
    }
    return numbers;
  };
  EXPECT_EQ(factors({}, 0), (std::vector<double>{2}));
  EXPECT_EQ(factors({2, 1}, 0), (std::vector<double>{1, 2}));
  EXPECT_EQ(factors({2, 2}, 2), (std::vector<double>{1, double(2.0F / 448), 0.5, 2}));
  for (const Extents& shape : {Extents{2}, {1}, {2, 2}, {3, 1}}) {
    EXPECT_THROW(factors(shape, 0), InputError);
  }
  EXPECT_THROW(factors({2, 1}, 2), InputError);
  EXPECT_THROW(factors({2, 1}, -1), InputError);
}

TEST(Quantize, Refusals) {
  EXPECT_THROW(quantize_channels(matrix({{1, kNan}}).view(), Dtype::i8), InputError);
  EXPECT_THROW(quantize_channels(matrix({{1, kInf}}).view(), Dtype::f8_e5m2), InputError);
  EXPECT_THROW(quantize_channels(matrix({{1, 2}}).view(), Dtype::bf16), InputError);
  const Tensor v = matrix({{1, 2}}), bits_in(Dtype::i8, {1, 2});
  Tensor bits(Dtype::i8, {1, 2}), scale(Dtype::f32, {1, 1}), wrong(Dtype::i8, {2, 2});
  const std::vector<int32_t> good{2}, too_wide{3}, too_many{2, 2};
  const auto call = [&](const ConstTensorView& from, const std::vector<int32_t>& widths,
                        Tensor& to) {
    quantize({.v = from, .widths = widths, .bits = to.view(), .scale = scale.view()});
  };
  EXPECT_NO_THROW(call(v.view(), good, bits));
  EXPECT_THROW(call(v.view(), too_wide, bits), InputError);
  EXPECT_THROW(call(v.view(), too_many, bits), InputError);
  EXPECT_THROW(call(v.view(), good, wrong), InputError);
  EXPECT_THROW(call(bits_in.view(), good, bits), InputError);
}

}  // namespace
}  // namespace loratory::reference
