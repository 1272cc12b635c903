// The products' own kernel, thread by thread on the CPU: every tile and cluster of random shapes
// has, bit for bit, the sums of one chain over k.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>
#include <vector>

#include "fuzz/support/lora_case.hpp"
#include "gpu/product/skinny_plan.hpp"
#include "tests/gpu/emulated/emulated_memory.hpp"
#include "tests/gpu/emulated/emulated_products.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::Tensor;

struct SkinnyCase {
  uint64_t seed = 1;
  ProductShape shape{};
  ProductChoice choice{};
  int64_t tokens = 1;
  int64_t x_gap = 0, w_gap = 0, y_gap = 0;  // numbers between rows
  int32_t most_stages = kMaxSkinnyStages;
  int max_clusters = 1;
};

std::string describe(const SkinnyCase& c) {
  return fmt::format(
      "REPRO: LORATORY_SEED={} {}, {}, {} tokens, gaps {} {} {}, {} stages, {} "
      "clusters",
      c.seed, describe(c.shape), to_text(c.choice), c.tokens, c.x_gap, c.w_gap, c.y_gap,
      c.most_stages, c.max_clusters);
}

// Every tile in turn.
SkinnyCase random_case(uint64_t seed) {
  auto draw = [&, i = uint64_t{0}](int64_t num) mutable {
    return int64_t(reference::random_bits(seed, 1, i++) % uint64_t(num));
  };
  constexpr int64_t kTokens[] = {1, 5, 8, 9, 16, 31, 64, 65, 130};
  SkinnyCase c{.seed = seed};
  c.choice = {.kernel = ProductKernel::skinny,
              .columns = kSkinnyColumns[seed % std::size(kSkinnyColumns)],
              .cluster = kSkinnyClusters[draw(std::size(kSkinnyClusters))]};
  c.tokens = kTokens[draw(std::size(kTokens))];
  c.shape.num_out = 1 + draw(int64_t{2} * c.choice.columns * c.choice.cluster);
  c.shape.num_in = 8 * (1 + draw(80));
  c.shape.max_tokens = c.tokens;
  c.shape.weight = draw(2) == 0 ? Dtype::bf16 : Dtype::f16;
  c.shape.out = draw(3) == 0 ? Dtype::f32 : c.shape.weight;
  c.shape.has_bias = draw(2) == 0;
  c.x_gap = 8 * draw(3), c.w_gap = 8 * draw(2), c.y_gap = draw(4);
  c.most_stages = int32_t(2 + draw(4));
  c.max_clusters = int(1 + draw(3));
  return c;
}

Tensor random_matrix(Dtype dtype, int64_t rows, int64_t columns, int64_t gap, uint64_t seed,
                     uint64_t stream) {
  Tensor out(dtype, {rows, columns}, {columns + gap, 1});
  std::ranges::fill(out.bytes(), std::byte(0xFF));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const uint64_t bits = reference::random_bits(seed, stream, uint64_t(i * columns + j));
      out.set(double(bits >> 40) * 0x1p-23 - 1, i, j);
    }
  }
  return out;
}

using Rows = std::vector<std::vector<double>>;
Rows rows_of(const Tensor& matrix) {
  Rows out(size_t(matrix.shape()[0]));
  for (size_t i = 0; i < out.size(); ++i) {
    for (int64_t j = 0; j < matrix.shape()[1]; ++j) out[i].push_back(matrix.get(int64_t(i), j));
  }
  return out;
}

struct SkinnyData {
  explicit SkinnyData(const SkinnyCase& c)
      : x(random_matrix(c.shape.weight, c.tokens, c.shape.num_in, c.x_gap, c.seed, 2)),
        w(random_matrix(c.shape.weight, c.shape.num_out, c.shape.num_in, c.w_gap, c.seed, 3)),
        bias(random_matrix(c.shape.weight, 1, c.shape.num_out, 0, c.seed, 4)),
        y(c.shape.out, {c.tokens, c.shape.num_out}, {c.shape.num_out + c.y_gap, 1}) {
    std::ranges::fill(y.bytes(), std::byte(0xFF));
  }
  Tensor x, w, bias, y;
};

// As the emulated tensor cores add: exact products, rounded to fp32 after each 16 of them.
float chain(const std::vector<double>& x, const std::vector<double>& w) {
  float sum = 0;
  for (size_t k = 0; k < x.size(); k += 16) {
    double step = sum;
    for (size_t i = k; i < std::min(k + 16, x.size()); ++i) step += x[i] * w[i];
    sum = float(step);
  }
  return sum;
}

Tensor expected(const SkinnyCase& c, const SkinnyData& data) {
  const Rows x = rows_of(data.x), w = rows_of(data.w);
  Tensor y = data.y;
  for (int64_t t = 0; t < c.tokens; ++t) {
    for (int64_t n = 0; n < c.shape.num_out; ++n) {
      const float sum = chain(x[size_t(t)], w[size_t(n)]);
      y.set(c.shape.has_bias ? sum + float(data.bias.get(0, n)) : sum, t, n);
    }
  }
  return y;
}

Tensor product(const SkinnyCase& c, const SkinnyData& data) {
  emulated::Memory memory;
  const ProductTensors tensors{.weight = memory.put(data.w),
                               .bias = c.shape.has_bias ? memory.put(data.bias).data : nullptr,
                               .x = memory.put(data.x),
                               .y = memory.put(data.y)};
  SkinnyLayout layout = skinny_layout(c.shape, c.tokens, c.choice);
  layout.num_stages = std::min(layout.num_stages, c.most_stages);
  emulated::run_skinny_product(c.shape, c.choice, layout, tensors, c.max_clusters, c.seed);
  EXPECT_TRUE(memory.is_intact()) << describe(c);
  Tensor y = data.y;
  emulated::Memory::get(tensors.y, y);
  return y;
}

void check_case(const SkinnyCase& c) {
  const SkinnyData data(c);
  const Tensor got = product(c, data), want = expected(c, data);
  ASSERT_TRUE(std::ranges::equal(got.bytes(), want.bytes())) << describe(c);
}

TEST(SkinnyEmulated, HasTheBitsOfOneChain) {
  const char* const one = std::getenv("LORATORY_SEED");
  if (one != nullptr) return check_case(random_case(std::stoull(one)));
  std::set<std::pair<int32_t, int32_t>> choices;
  for (uint64_t seed = 1; seed <= 44 && !HasFailure(); ++seed) {
    const SkinnyCase c = random_case(seed);
    choices.emplace(c.choice.columns <= 64, c.choice.cluster);
    check_case(c);
  }
  EXPECT_EQ(choices.size(), 2 * std::size(kSkinnyClusters));
}

// All stages that fit, as it is launched, and two more of K.
TEST(SkinnyEmulated, TheWholeRingFits) {
  for (const int columns : {16, 224}) {
    for (const int64_t tokens : {1, 9, 64}) {
      SkinnyCase c{.seed = 7, .shape = {.num_out = columns, .max_tokens = tokens}};
      c.choice = {.kernel = ProductKernel::skinny, .columns = columns, .cluster = 1};
      c.tokens = tokens;
      const SkinnyLayout layout = skinny_layout(c.shape, tokens, c.choice);
      c.shape.num_in = (layout.num_stages + 2) * layout.panels * kPanelDepth;
      check_case(c);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace loratory::gpu
