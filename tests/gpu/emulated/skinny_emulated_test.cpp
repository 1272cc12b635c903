// The products' own kernel, thread by thread on the CPU: every kernel and cluster has, bit for bit,
// the sums of one chain over k, and the SwiGLU of them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <set>
#include <utility>
#include <vector>

#include "fuzz/support/lora_case.hpp"
#include "gpu/product/skinny_plan.hpp"
#include "reference/numerics/dtype.hpp"
#include "tests/gpu/emulated/emulated_memory.hpp"
#include "tests/gpu/emulated/emulated_products.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::Tensor;

enum class Ends : uint8_t { as_product, with_silu };

struct SkinnyCase {
  uint64_t seed = 1;
  ProductShape shape{};
  ProductChoice choice{};
  int64_t tokens = 1;
  int64_t x_gap = 0, w_gap = 0, y_gap = 0;  // numbers between rows
  int64_t y_shift = 0;                      // of its first number, in numbers
  Ends ends = Ends::as_product;
  emulated::SkinnyRun run{};

  bool is_gated() const { return ends == Ends::with_silu; }
  int64_t y_columns() const { return is_gated() ? shape.num_out / 2 : shape.num_out; }
};

std::string describe(const SkinnyCase& c) {
  return fmt::format(
      "REPRO: LORATORY_SEED={} {}{}, {}, {} tokens, gaps {} {} {}, y from {}, {} stages, {} asked "
      "ahead, {} clusters",
      c.seed, describe(c.shape), c.is_gated() ? ", SwiGLU" : "", to_text(c.choice), c.tokens,
      c.x_gap, c.w_gap, c.y_gap, c.y_shift, c.run.num_stages, c.run.num_asked_ahead,
      c.run.max_clusters);
}

class Draws {
 public:
  explicit Draws(uint64_t seed) : seed_(seed) {}
  int64_t operator()(int64_t num) {
    return int64_t(reference::random_bits(seed_, 1, num_++) % uint64_t(num));
  }

 private:
  uint64_t seed_, num_ = 0;
};

// Every 44 seeds in turn have each tile with each kernel, and with each cluster.
constexpr uint64_t kNumKernels = std::size(kSkinnyColumns) * std::size(kWgmmaTokens);

// For the kernel of as many tokens of wgmma.
int64_t draw_tokens(Draws& draw, size_t kernel) {
  const int64_t fewer = kernel == 0 ? 0 : kWgmmaTokens[kernel - 1];
  const int64_t most = kernel + 1 == std::size(kWgmmaTokens) ? 300 : kWgmmaTokens[kernel];
  return draw(4) == 0 ? kWgmmaTokens[kernel] : fewer + 1 + draw(most - fewer);
}

// Two CTAs share W where both load whole eights of its rows, of SwiGLU of both halves.
void share_weights(Draws& draw, SkinnyCase& c) {
  ProductChoice choice = c.choice;
  choice.token_ctas = 2;
  if (!has_skinny_kernel(choice) || (c.is_gated() && choice.columns % 32 != 0)) return;
  c.choice = choice;
  c.tokens = 2 * c.tokens - draw(2);
}

SkinnyCase random_case(uint64_t seed, Ends ends) {
  constexpr int64_t kMostWork = 20'000'000;
  Draws draw(seed);
  SkinnyCase c{.seed = seed, .ends = ends};
  const size_t tile = seed % std::size(kSkinnyColumns);
  const size_t kernel = seed / std::size(kSkinnyColumns) % std::size(kWgmmaTokens);
  c.choice = {.kernel = ProductKernel::skinny,
              .columns = kSkinnyColumns[tile],
              .cluster = kSkinnyClusters[(tile + kernel) % std::size(kSkinnyClusters)]};
  c.tokens = draw_tokens(draw, kernel);
  if (draw(2) == 0) share_weights(draw, c);
  c.shape.num_in = 8 * (1 + draw(c.tokens > 64 ? 40 : 80));
  c.shape.num_out = 1 + draw(std::min(int64_t{2} * c.choice.columns * c.choice.cluster,
                                      kMostWork / (c.tokens * c.shape.num_in)));
  c.shape.max_tokens = c.tokens;
  c.shape.weight = draw(2) == 0 ? Dtype::bf16 : Dtype::f16;
  c.shape.out = draw(3) == 0 ? Dtype::f32 : c.shape.weight;
  c.shape.has_bias = draw(2) == 0;
  c.x_gap = 8 * draw(3), c.w_gap = 8 * draw(2), c.y_gap = draw(4), c.y_shift = draw(2);
  c.run = {.max_clusters = int(1 + draw(3)), .num_stages = int32_t(2 + draw(4)), .seed = seed};
  c.run.num_asked_ahead = int32_t(draw(c.run.num_stages + 1));
  if (c.is_gated()) {
    c.shape.num_out = (c.shape.num_out + 15) / 16 * 16;
    c.shape.out = c.shape.weight;
    c.shape.has_bias = false;
    c.y_gap *= 2, c.y_shift *= 2;
  }
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
        y(c.shape.out, {c.tokens, c.y_columns()}, {c.y_columns() + c.y_gap, 1}) {
    std::ranges::fill(y.bytes(), std::byte(0xFF));
  }
  Tensor x, w, bias, y;
};

// As the emulated tensor cores add: exact products, rounded to fp32 after each 16 of them.
float chain(const std::vector<double>& x_row, const std::vector<double>& w_row) {
  const double *const x = x_row.data(), *const w = w_row.data();
  float sum = 0;
  for (size_t k = 0; k < x_row.size(); k += 16) {
    const size_t end = std::min(k + 16, x_row.size());
    double step = sum;
    for (size_t i = k; i < end; ++i) step += x[i] * w[i];
    sum = float(step);
  }
  return sum;
}

Tensor expected(const SkinnyCase& c, const SkinnyData& data) {
  const Rows x = rows_of(data.x), w = rows_of(data.w);
  const auto rounded = [&](int64_t t, int64_t n) {
    return float(reference::round_to(c.shape.weight, double{chain(x[size_t(t)], w[size_t(n)])}));
  };
  Tensor y = data.y;
  for (int64_t t = 0; t < c.tokens; ++t) {
    for (int64_t n = 0; n < c.y_columns(); ++n) {
      if (c.is_gated()) {
        y.set(emulated::silu_mul_of(rounded(t, n), rounded(t, n + c.y_columns())), t, n);
      } else {
        const float sum = chain(x[size_t(t)], w[size_t(n)]);
        y.set(c.shape.has_bias ? sum + float(data.bias.get(0, n)) : sum, t, n);
      }
    }
  }
  return y;
}

// y begins `shift` numbers behind an aligned place.
DeviceView put_shifted(emulated::Memory& memory, const Tensor& y, int64_t shift) {
  DeviceView out = memory.put(y);
  const size_t shift_bytes = size_t(shift) * size_bytes(y.dtype());
  std::byte* const room = memory.room(shift_bytes + y.bytes().size());
  out.data = std::ranges::copy(y.bytes(), room + shift_bytes).out - y.bytes().size();
  return out;
}

// Until the grid before has ended, x is NaN.
Tensor product(const SkinnyCase& c, const SkinnyData& data) {
  emulated::Memory memory;
  const ProductTensors tensors{.weight = memory.put(data.w),
                               .bias = c.shape.has_bias ? memory.put(data.bias).data : nullptr,
                               .x = memory.put(data.x),
                               .y = put_shifted(memory, data.y, c.y_shift),
                               .is_gated = c.is_gated()};
  check_weights(c.shape, tensors);
  check_activations(c.shape, tensors);
  EXPECT_TRUE(!c.is_gated() || fuses_silu(c.shape, c.choice, tensors)) << describe(c);
  auto* const x = static_cast<std::byte*>(tensors.x.data);
  std::fill_n(x, data.x.bytes().size(), std::byte{0xFF});
  emulated::SkinnyRun run = c.run;
  run.prior_grid = [&] { std::ranges::copy(data.x.bytes(), x); };
  emulated::run_skinny_product(c.shape, c.choice, tensors, run);
  EXPECT_TRUE(memory.is_intact()) << describe(c);
  Tensor y = data.y;
  emulated::Memory::get(tensors.y, y);
  return y;
}

void check_case(const SkinnyCase& c) {
  SCOPED_TRACE(describe(c));
  const SkinnyData data(c);
  try {
    const Tensor got = product(c, data), want = expected(c, data);
    ASSERT_TRUE(std::ranges::equal(got.bytes(), want.bytes()));
  } catch (const std::exception& error) {
    FAIL() << error.what();
  }
}

// Random cases, or the one that failed.
void check_cases(Ends ends, uint64_t num) {
  const char* const one = std::getenv("LORATORY_SEED");
  if (one != nullptr) return check_case(random_case(std::stoull(one), ends));
  for (uint64_t seed = 1; seed <= num && !testing::Test::HasFailure(); ++seed) {
    const SkinnyCase c = random_case(seed, ends);
    if (c.is_gated() && c.choice.columns % 16 != 0) continue;
    check_case(c);
  }
}

TEST(SkinnyEmulated, HasTheBitsOfOneChain) { check_cases(Ends::as_product, 2 * kNumKernels); }

TEST(SkinnyEmulated, SwigluHasTheBitsOfTheRoundedProducts) {
  check_cases(Ends::with_silu, kNumKernels);
}

// What the random cases above consist of.
TEST(SkinnyEmulated, CasesHaveEveryKernelAndCluster) {
  std::set<std::pair<int32_t, int32_t>> kernels, clusters, threads, shared;
  std::set<int32_t> asked_ahead;
  int num_words = 0, num_odd = 0, num_f32 = 0;
  for (uint64_t seed = 1; seed <= 2 * kNumKernels; ++seed) {
    const SkinnyCase c = random_case(seed, Ends::as_product);
    const SkinnyLayout layout = skinny_layout(c.shape, c.tokens, c.choice);
    kernels.emplace(layout.columns, layout.tokens);
    clusters.emplace(c.choice.columns, c.choice.cluster);
    if (c.choice.token_ctas > 1) shared.emplace(layout.tokens, c.choice.cluster);
    threads.emplace(layout.num_threads(), c.choice.cluster);
    asked_ahead.insert(c.run.num_asked_ahead);
    const bool is_even = (c.shape.num_out + c.y_gap) % 2 == 0 && c.y_shift == 0;
    (c.shape.out == Dtype::f32 ? num_f32 : is_even ? num_words : num_odd) += 1;
  }
  EXPECT_EQ(kernels.size(), kNumKernels);
  EXPECT_EQ(clusters.size(), std::size(kSkinnyColumns) * std::size(kSkinnyClusters));
  EXPECT_GE(threads.size(), std::size(kSkinnyClusters) + 2);
  EXPECT_GE(shared.size(), 8U);
  EXPECT_EQ(asked_ahead.size(), 6U);
  EXPECT_GE(std::min({num_words, num_odd, num_f32}), 5);
}

// As it is launched, all stages that fit, and two more of K. The last stage's products read most
// behind it where tokens are just too many for a smaller kernel.
TEST(SkinnyEmulated, TheWholeRingFits) {
  for (const int columns : kSkinnyColumns) {
    for (const int64_t tokens : {1, 9, 33, 65}) {
      SkinnyCase c{.seed = 7, .shape = {.num_out = columns, .max_tokens = tokens}};
      c.choice = {.kernel = ProductKernel::skinny, .columns = columns, .cluster = 1};
      c.tokens = tokens;
      const SkinnyLayout layout = skinny_layout(c.shape, tokens, c.choice);
      c.shape.num_in = int64_t{layout.num_stages + 2} * layout.panels * kPanelDepth;
      check_case(c);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace loratory::gpu
