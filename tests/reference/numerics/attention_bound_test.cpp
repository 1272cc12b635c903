// The bound of attention against a second, small implementation in fp32: it holds, and it is not
// loose.
#include "reference/numerics/attention_bound.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "reference/numerics/error_bound.hpp"

namespace loratory::reference {
namespace {

struct Case {
  size_t num_keys, head_dim;
  float spread;  // of q
  AttentionArithmetic arithmetic;
};

struct Numbers {
  std::vector<float> q = {}, keys = {}, values = {};
  float scale = 1;
};

Numbers numbers_of(const Case& c, std::mt19937& random) {
  std::uniform_real_distribution<float> number(-2, 2);
  Numbers out{.scale = 1 / std::sqrt(float(c.head_dim))};
  for (size_t i = 0; i < c.head_dim; ++i) out.q.push_back(c.spread * number(random));
  for (size_t i = 0; i < c.num_keys * c.head_dim; ++i) {
    out.keys.push_back(number(random));
    out.values.push_back(number(random));
  }
  return out;
}

/// Sums of one row so far, relative to 2^shift.
struct Sums {
  float shift = -INFINITY, weights = 0;
  std::vector<float> columns;
};

void rescale(Sums& sums, float shift) {
  const float factor = std::exp2(sums.shift - shift);
  sums.weights *= factor;
  for (float& column : sums.columns) column *= factor;
  sums.shift = shift;
}

float product(const Numbers& n, size_t key) {
  float sum = 0;
  for (size_t i = 0; i < n.q.size(); ++i) sum += n.q[i] * n.keys[key * n.q.size() + i];
  return sum;
}

void add_tile(const Numbers& n, Dtype weights, size_t begin, size_t end, Sums& sums) {
  const auto factor = float(double{n.scale} * std::numbers::log2e);
  float shift = sums.shift;
  for (size_t j = begin; j < end; ++j) shift = std::max(shift, factor * product(n, j));
  rescale(sums, shift);
  for (size_t j = begin; j < end; ++j) {
    const float weight = std::exp2(std::fma(product(n, j), factor, -shift));
    sums.weights += weight;
    const auto rounded = float(round_to(weights, weight));
    for (size_t i = 0; i < sums.columns.size(); ++i) {
      sums.columns[i] += rounded * n.values[j * sums.columns.size() + i];
    }
  }
}

std::vector<float> computed(const Case& c, const Numbers& n) {
  const auto piece = size_t(std::min<int64_t>(c.arithmetic.piece_keys, int64_t(c.num_keys)));
  const auto tile = size_t(std::min<int64_t>(c.arithmetic.tile_keys, int64_t(c.num_keys)));
  Sums total{.columns = std::vector<float>(c.head_dim)};
  for (size_t begin = 0; begin < c.num_keys; begin += piece) {
    const size_t end = std::min(begin + piece, c.num_keys);
    Sums sums{.columns = std::vector<float>(c.head_dim)};
    for (size_t at = begin; at < end; at += tile) {
      add_tile(n, c.arithmetic.weights, at, std::min(at + tile, end), sums);
    }
    const float shift = std::max(total.shift, sums.shift);
    rescale(total, shift);
    rescale(sums, shift);
    total.weights += sums.weights;
    for (size_t i = 0; i < c.head_dim; ++i) total.columns[i] += sums.columns[i];
  }
  for (float& column : total.columns) {
    column = float(round_to(c.arithmetic.out, column * (1 / total.weights)));
  }
  return total.columns;
}

/// The largest error / bound of some random heads.
double worst_ratio(const Case& c, int num_heads) {
  std::mt19937 random(7);
  double worst = 0;
  for (int head = 0; head < num_heads; ++head) {
    const Numbers n = numbers_of(c, random);
    const AttentionOracle oracle = attention_oracle(n.q, n.keys, n.values, n.scale, c.arithmetic);
    const std::vector<float> got = computed(c, n);
    for (size_t i = 0; i < c.head_dim; ++i) {
      worst =
          std::max(worst, error_over(got[i], oracle.exact[i], oracle.bound[i], c.arithmetic.out));
    }
  }
  return worst;
}

AttentionArithmetic in_pieces(Dtype dtype) {
  return {.weights = dtype, .out = dtype, .tile_keys = 64, .piece_keys = 256};
}

TEST(AttentionBound, HoldsForEveryLengthAndSpread) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    for (const size_t num_keys : {1, 2, 63, 64, 65, 257, 520}) {
      for (const float spread : {0.0F, 1.0F, 30.0F}) {
        for (const AttentionArithmetic& a :
             {AttentionArithmetic{.weights = dtype, .out = dtype}, in_pieces(dtype)}) {
          EXPECT_LE(worst_ratio({num_keys, 16, spread, a}, 2), 1)
              << name(dtype) << " " << num_keys << " keys, spread " << spread;
        }
      }
    }
  }
}

// Found: 0.0099, 0.51 and 0.48. In f32 the bound is that of 64 products whose roundings all have
// one sign.
TEST(AttentionBound, IsNotLoose) {
  const auto worst = [](Dtype dtype) { return worst_ratio({20, 64, 1, in_pieces(dtype)}, 40); };
  EXPECT_GT(worst(Dtype::f32), 0.008);
  EXPECT_GT(worst(Dtype::bf16), 0.4);
  EXPECT_GT(worst(Dtype::f16), 0.4);
}

// One key: its weight is 1 and out is v.
TEST(AttentionBound, OfOneKeyIsOneRounding) {
  const std::vector<float> q{1}, keys{2}, values{3};
  const AttentionOracle one =
      attention_oracle(q, keys, values, 1, {.weights = Dtype::bf16, .out = Dtype::bf16});
  EXPECT_EQ(one.exact[0], 3);
  EXPECT_GT(one.bound[0], 3 * 0x1p-8);
  EXPECT_LT(one.bound[0], 3 * 0x1p-8 * 3);  // the weight is rounded too
}

// A score that is off moves the result towards or away from its value.
TEST(AttentionBound, GrowsWithTheScores) {
  const std::vector<float> q{1, -1}, values{5, 5, -5, -5};
  const std::vector<float> small{1, 1, 1, 1}, large{1000, 1000, 1000, 1000};
  const AttentionArithmetic f32;
  EXPECT_GT(attention_oracle(q, large, values, 1, f32).bound[0],
            100 * attention_oracle(q, small, values, 1, f32).bound[0]);
}

}  // namespace
}  // namespace loratory::reference
