// Products of the base model on a GPU: numbers against float64, and one class of bits for every
// kernel, M, place of a row, stream and graph.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "captured_graph.hpp"
#include "fuzz/support/lora_case.hpp"
#include "gpu/model/activation.hpp"
#include "gpu/product/base_product.hpp"
#include "gpu/product/product_bound.hpp"
#include "gpu/product/product_tuner.hpp"
#include "gpu/product/skinny_plan.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "guarded_tensor.hpp"
#include "reference/numerics/error_bound.hpp"
#include "suite.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::Tensor;

enum class Numbers : uint8_t { integers, normal, wide };

constexpr int64_t kMaxTokens = 300;

/// The library where the machine has one; own kernels alone are tested everywhere.
Products& products() {
  static Products* const all = [] {
    try {
      return new Products({});
    } catch (const std::runtime_error& error) {
      fmt::print("{}\n", error.what());
      return new Products({.cublaslt = "none"});
    }
  }();
  return *all;
}

double draw_number(Numbers numbers, Dtype dtype, uint64_t bits) {
  if (numbers == Numbers::integers) return double(bits % 7) - 3;
  const double unit = double(bits >> 40) * 0x1p-24;
  if (numbers == Numbers::normal) return 4 * unit - 2;
  const int widest = dtype == Dtype::f16 ? 6 : 20;
  const double mantissa = std::ldexp(1 + unit, int(bits % uint64_t(2 * widest + 1)) - widest);
  return (bits >> 39 & 1) != 0 ? -mantissa : mantissa;
}

/// Rows with gaps of poison between them if `apart` exceeds the columns.
Tensor random_matrix(Dtype dtype, int64_t rows, int64_t columns, int64_t apart, Numbers numbers,
                     uint64_t seed) {
  Tensor out(dtype, {rows, columns}, {apart, 1});
  std::ranges::fill(out.bytes(), std::byte(0xFF));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const uint64_t bits = reference::random_bits(seed, 7, uint64_t(i * columns + j));
      out.set(draw_number(numbers, dtype, bits), i, j);
    }
  }
  return out;
}

Tensor poisoned(Dtype dtype, int64_t rows, int64_t columns, int64_t apart) {
  Tensor out(dtype, {rows, columns}, {apart, 1});
  std::ranges::fill(out.bytes(), std::byte(0xFF));
  return out;
}

/// Rows of `from` in another order, or some of them.
Tensor rows_of(const Tensor& from, const std::vector<int64_t>& rows) {
  const int64_t columns = from.shape()[1];
  Tensor out(from.dtype(), {int64_t(rows.size()), columns});
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int64_t j = 0; j < columns; ++j) out.set(from.get(rows[i], j), int64_t(i), j);
  }
  return out;
}

bool same_row_bits(const Tensor& a, int64_t row, const Tensor& b, int64_t other) {
  const auto size = size_t(a.shape()[1]) * size_bytes(a.dtype());
  return std::memcmp(a.view().address(row, int64_t(0)), b.view().address(other, int64_t(0)),
                     size) == 0;
}

/// Whether there is poison wherever no row is.
bool gaps_are_intact(const Tensor& y) {
  const size_t row = size_t(y.shape()[1]) * size_bytes(y.dtype());
  const size_t apart = size_t(y.strides()[0]) * size_bytes(y.dtype());
  for (size_t i = 0; i + 1 < size_t(y.shape()[0]); ++i) {
    for (size_t at = i * apart + row; at < (i + 1) * apart; ++at) {
      if (y.bytes()[at] != std::byte(0xFF)) return false;
    }
  }
  return true;
}

/// Weights of one product on the device.
struct Case {
  ProductShape shape;
  Tensor w, x, bias;
  int64_t y_stride = 0;
  GuardedTensor device_w, device_bias;

  int64_t num_tokens() const { return x.shape()[0]; }

  ProductTensors tensors(const GuardedTensor& with_x, const GuardedTensor& y) const {
    return {.weight = device_w.view(),
            .bias = shape.has_bias ? device_bias.view().data : nullptr,
            .x = with_x.view(),
            .y = y.view()};
  }

  /// y of one launch; the poison between its rows and around it stays.
  Tensor run(const ProductChoice& choice, const Tensor& of_x) const {
    const GuardedTensor on_device(of_x);
    const Tensor before = poisoned(shape.out, of_x.shape()[0], shape.num_out, y_stride);
    GuardedTensor y(before);
    const ProductTensors all = tensors(on_device, y);
    check_weights(shape, all);
    check_activations(shape, all);
    products().launch(shape, choice, all, nullptr, LaunchOrder::after_previous);
    LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
    EXPECT_TRUE(y.guards_are_intact()) << to_text(choice) << " wrote around y";
    Tensor out = y.read();
    EXPECT_TRUE(gaps_are_intact(out)) << to_text(choice) << " wrote between the rows of y";
    return out;
  }
};

ProductShape draw_shape(const Trial& trial, bool on_tensor_cores) {
  constexpr int64_t kIns[] = {8, 16, 24, 64, 72, 128, 136, 192, 520, 1024, 2056, 4096};
  constexpr int64_t kOuts[] = {1, 7, 8, 16, 23, 24, 25, 64, 100, 255, 256, 257, 520, 1000};
  ProductShape shape{.max_tokens = kMaxTokens};
  shape.num_in = std::min(kIns[trial.pick(1, std::size(kIns))], Trial::size(4096, 136));
  shape.num_out = std::min(kOuts[trial.pick(2, std::size(kOuts))], Trial::size(1000, 100));
  shape.weight = trial.pick(3, 2) == 0 ? Dtype::bf16 : Dtype::f16;
  shape.out = trial.pick(4, 3) == 0 ? Dtype::f32 : shape.weight;
  shape.has_bias = trial.pick(5, 3) == 0;
  if (!on_tensor_cores && trial.pick(6, 2) == 0) shape.weight = shape.out = Dtype::f32;
  if (!on_tensor_cores) shape.num_in = std::max<int64_t>(1, shape.num_in - trial.pick(7, 8));
  return shape;
}

Case make_case(const Trial& trial, Numbers numbers, const ProductShape& shape) {
  constexpr int64_t kTokens[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 128, 129, 200};
  const int64_t tokens = kTokens[trial.pick(8, std::size(kTokens))];
  const int64_t gap = trial.pick(9, 2) * 8;
  trial.classify(tokens <= 8, "up to 8 tokens");
  trial.classify(tokens > 64, "more than 64 tokens");
  trial.classify(shape.has_bias, "bias");
  trial.classify(shape.out == Dtype::f32, "y of f32");
  trial.classify(shape.weight == Dtype::f16, "f16");
  trial.classify(gap > 0, "rows with gaps");
  trial.classify(shape.num_out % 2 == 1, "odd columns");
  trial.classify(shape.num_in % 64 != 0, "K ends within a panel");
  const uint64_t seed = trial.seed();
  Tensor w =
      random_matrix(shape.weight, shape.num_out, shape.num_in, shape.num_in + gap, numbers, seed);
  Tensor x =
      random_matrix(shape.weight, tokens, shape.num_in, shape.num_in + gap, numbers, seed + 1);
  Tensor bias = random_matrix(shape.weight, 1, shape.num_out, shape.num_out, numbers, seed + 2);
  return {.shape = shape,
          .w = w,
          .x = x,
          .bias = bias,
          .y_stride = shape.num_out + gap * trial.pick(10, 2) + trial.pick(11, 2),
          .device_w = GuardedTensor(w),
          .device_bias = GuardedTensor(bias)};
}

Case make_case(const Trial& trial, Numbers numbers, bool on_tensor_cores) {
  return make_case(trial, numbers, draw_shape(trial, on_tensor_cores));
}

/// Tiles and clusters of this case's choosing, and what the library offers.
std::vector<ProductChoice> some_choices(const Trial& trial, const Case& c) {
  std::vector<ProductChoice> out;
  for (uint64_t i = 0; i < 4; ++i) {
    out.push_back(choice_from_text(
        fmt::format("skinny:{}:{}", kSkinnyColumns[trial.pick(20 + i, std::size(kSkinnyColumns))],
                    kSkinnyClusters[trial.pick(30 + i, std::size(kSkinnyClusters))]),
        ""));
  }
  int left = 3;
  for (const ProductChoice& choice : products().choices(c.shape, c.num_tokens(), false)) {
    if (choice.kernel == ProductKernel::cublaslt && left-- > 0) out.push_back(choice);
  }
  const bool packed = c.y_stride == c.shape.num_out && c.x.strides()[0] == c.shape.num_in;
  trial.classify(left < 3 && packed, "with cuBLASLt");
  return out;
}

/// Whether a plan cannot choose this kernel of the library for M tokens: it saw other bits, or the
/// library does not offer it for the tokens of the bucket.
bool is_dropped(const ProductShape& shape, int64_t num_tokens, const ProductChoice& choice) {
  if (choice.kernel != ProductKernel::cublaslt) return false;
  const ProductBucket& bucket = bucket_of(products().plan(shape), num_tokens);
  const auto offered = products().choices(shape, bucket.tokens, false);
  if (std::ranges::find(offered, choice) == offered.end()) return true;
  const std::string begin = describe(shape) + ": " + to_text(choice) + " has other bits";
  return std::ranges::any_of(products().notes(),
                             [&](const std::string& note) { return note.starts_with(begin); });
}

ProductFacts facts_of(const Case& c, int64_t row, int64_t column) {
  ProductFacts facts{.num_in = c.shape.num_in};
  for (int64_t k = 0; k < c.shape.num_in; ++k) {
    const double term = c.x.get(row, k) * c.w.get(column, k);
    facts.result += term;
    facts.magnitude += std::abs(term);
  }
  if (c.shape.has_bias) facts.bias = c.bias.get(int64_t(0), column);
  facts.result += facts.bias;
  return facts;
}

/// A few elements, those at the ends among them: the others are held by their bits.
struct Judged {
  int64_t row, column;
  ProductFacts facts;
};
std::vector<Judged> judged(const Trial& trial, const Case& c) {
  std::vector<Judged> out;
  const int64_t rows = c.num_tokens(), columns = c.shape.num_out;
  for (uint64_t i = 0; i < 200; ++i) {
    const int64_t row = i < 2 ? 0 : i < 4 ? rows - 1 : trial.pick(100 + i, rows);
    const int64_t column = i % 2 == 0 && i < 4 ? 0
                           : i < 4             ? columns - 1
                                               : trial.pick(400 + i, columns);
    out.push_back({row, column, facts_of(c, row, column)});
  }
  return out;
}

void expect_within_bound(const Trial& trial, const Case& c, const Tensor& y,
                         const std::vector<Judged>& elements, bool on_tensor_cores,
                         const std::string& kernel) {
  double worst = 0;
  for (const Judged& e : elements) {
    const double bound = product_error_bound(e.facts, on_tensor_cores, c.shape.out);
    const double ratio =
        reference::error_over(y.get(e.row, e.column), e.facts.result, bound, c.shape.out);
    worst = std::max(worst, ratio);
    if (!(ratio <= 1)) {
      ADD_FAILURE() << kernel << " of " << describe(c.shape) << " row " << e.row << " column "
                    << e.column << ": " << y.get(e.row, e.column) << " for " << e.facts.result
                    << ", error / bound " << ratio;
      break;
    }
  }
  trial.count(int64_t(elements.size()), worst);
}

class BaseProductOnGpu : public OnGpu {};

// Every kernel: within the bound, and the bits of every other kernel.
TEST_F(BaseProductOnGpu, KernelsAreWithinTheBoundAndAgree) {
  for_all_seeds(80, [](Trial& trial) {
    const Numbers numbers = trial.pick(0, 2) == 0 ? Numbers::normal : Numbers::wide;
    trial.classify(numbers == Numbers::wide, "wide exponents");
    const Case c = make_case(trial, numbers, true);
    const std::vector<Judged> elements = judged(trial, c);
    const std::vector<ProductChoice> choices = some_choices(trial, c);
    const Tensor first = c.run(choices[0], c.x);
    for (const ProductChoice& choice : choices) {
      const Tensor y = c.run(choice, c.x);
      expect_within_bound(trial, c, y, elements, true, to_text(choice));
      for (int64_t row = 0; row < c.num_tokens(); ++row) {
        ASSERT_TRUE(same_row_bits(y, row, first, row) ||
                    is_dropped(c.shape, c.num_tokens(), choice))
            << to_text(choice) << " and " << to_text(choices[0]) << " differ in row " << row
            << " of " << describe(c.shape) << ", " << c.num_tokens() << " tokens";
      }
      trial.count(c.num_tokens() * c.shape.num_out);
    }
  });
}

// Small integers: every product and sum is exact, so each result is the right one, rounded once.
TEST_F(BaseProductOnGpu, IntegersAreExact) {
  for_all_seeds(40, [](Trial& trial) {
    const Case c = make_case(trial, Numbers::integers, true);
    const std::vector<Judged> elements = judged(trial, c);
    for (const ProductChoice& choice : some_choices(trial, c)) {
      const Tensor y = c.run(choice, c.x);
      for (const Judged& e : elements) {
        ASSERT_EQ(y.get(e.row, e.column), reference::round_to(c.shape.out, e.facts.result))
            << to_text(choice) << " of " << describe(c.shape) << " row " << e.row << " column "
            << e.column;
      }
      trial.count(int64_t(elements.size()));
    }
  });
}

// A row has the bits it has alone: in any batch, at any place, beside NaN.
TEST_F(BaseProductOnGpu, ARowHasTheBitsOfTheRowAlone) {
  for_all_seeds(40, [](Trial& trial) {
    const Case c = make_case(trial, Numbers::wide, true);
    const std::vector<ProductChoice> choices = some_choices(trial, c);
    const Tensor y = c.run(choices[0], c.x);
    std::vector<int64_t> order = reference::shuffled(c.num_tokens(), trial.seed());
    Tensor mixed = rows_of(c.x, order);
    const int64_t poisoned_row = trial.pick(50, c.num_tokens());
    for (int64_t k = 0; k < c.shape.num_in; ++k) {
      mixed.set(std::numeric_limits<double>::quiet_NaN(), poisoned_row, k);
    }
    for (const ProductChoice& choice : choices) {
      const Tensor others = c.run(choice, mixed);
      for (int64_t i = 0; i < c.num_tokens(); ++i) {
        const bool same = same_row_bits(others, i, y, order[size_t(i)]);
        ASSERT_TRUE(same || i == poisoned_row || is_dropped(c.shape, c.num_tokens(), choice))
            << to_text(choice) << " row " << i << " of " << describe(c.shape);
      }
      const Tensor alone = c.run(choice, rows_of(c.x, {order[0]}));
      ASSERT_TRUE(same_row_bits(alone, 0, y, order[0]) || is_dropped(c.shape, 1, choice))
          << to_text(choice) << " of " << describe(c.shape);
      trial.count((c.num_tokens() + 1) * c.shape.num_out);
    }
  });
}

// --- SwiGLU of a product -------------------------------------------------------------------------

/// Gate and up of one size: most can be fused. Few shapes, since each is planned.
ProductShape gated_shape(const Trial& trial) {
  constexpr int64_t kIns[] = {8, 72, 136, 1024};
  constexpr int64_t kOuts[] = {2, 16, 24, 48, 64, 100, 112, 256, 400, 528};
  ProductShape shape{.max_tokens = kMaxTokens};
  shape.num_in = std::min(kIns[trial.pick(1, std::size(kIns))], Trial::size(1024, 136));
  shape.num_out = std::min(kOuts[trial.pick(2, std::size(kOuts))], Trial::size(528, 64));
  shape.weight = trial.pick(3, 2) == 0 ? Dtype::bf16 : Dtype::f16;
  shape.out = trial.pick(4, 6) == 0 ? Dtype::f32 : shape.weight;
  shape.has_bias = trial.pick(5, 6) == 0;
  if (trial.pick(6, 12) == 0) shape.weight = shape.out = Dtype::f32;
  shape.feeds_silu_mul = true;
  return shape;
}

Tensor poisoned_gated(const Case& c) {
  const int64_t columns = c.shape.num_out / 2;
  return poisoned(c.shape.out, c.num_tokens(), columns, c.y_stride - columns);
}

/// What one launch leaves of a poisoned y, which begins `shift` numbers behind an aligned place.
template <typename Launch>
Tensor gated(const Case& c, int64_t shift, const Launch& launch) {
  const GuardedTensor y(poisoned_gated(c), shift);
  launch(y.view());
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  EXPECT_TRUE(y.guards_are_intact()) << "wrote around y";
  Tensor out = y.read();
  EXPECT_TRUE(gaps_are_intact(out)) << "wrote between the rows of y";
  return out;
}

/// One launch after the other.
Tensor silu_mul_of_product(const Case& c, const BaseProduct& product, const GuardedTensor& x) {
  return gated(c, 0, [&](const DeviceView& y) {
    const int64_t columns = c.shape.num_out;
    const GuardedTensor gate_up(poisoned(c.shape.out, c.num_tokens(), columns, columns));
    product.launch(x.view(), gate_up.view(), nullptr);
    silu_mul(gate_up.view(), y, nullptr);
    LORATORY_CUDA_CHECK(cudaDeviceSynchronize());  // before gate_up ends
  });
}

/// Every tile and cluster of this case's choosing that can do both.
void expect_same_fused(const Trial& trial, const Case& c, const GuardedTensor& x,
                       const Tensor& expected) {
  for (const ProductChoice& choice : some_choices(trial, c)) {
    bool is_fused = false;
    const Tensor y = gated(c, 0, [&](const DeviceView& to) {
      const ProductTensors tensors{.weight = c.device_w.view(),
                                   .bias = c.shape.has_bias ? c.device_bias.view().data : nullptr,
                                   .x = x.view(),
                                   .y = to,
                                   .is_gated = true};
      is_fused = has_tensor_core_product(c.shape) && fuses_silu(c.shape, choice, tensors);
      if (!is_fused) return;
      products().launch(c.shape, choice, tensors, nullptr, LaunchOrder::after_previous);
    });
    ASSERT_TRUE(!is_fused || have_same_bits(y, expected))
        << to_text(choice) << " of " << describe(c.shape) << ", " << c.num_tokens() << " tokens";
    trial.count(is_fused ? c.num_tokens() * c.shape.num_out / 2 : 0);
  }
}

// At once or one after the other; where it cannot be at once nothing is launched.
TEST_F(BaseProductOnGpu, SwigluHasTheBitsOfTheProductAndSiluMul) {
  for_all_seeds(30, [](Trial& trial) {
    const Numbers numbers = trial.pick(0, 4) == 0 ? Numbers::wide : Numbers::normal;
    const Case c = make_case(trial, numbers, gated_shape(trial));
    const GuardedTensor x(c.x);
    const void* const bias = c.shape.has_bias ? c.device_bias.view().data : nullptr;
    const BaseProduct product(products(), c.device_w.view(), bias, c.shape.out, kMaxTokens,
                              c.shape.feeds_silu_mul);
    const Tensor expected = silu_mul_of_product(c, product, x);
    const int64_t shift = trial.pick(60, 4) == 0 ? 1 : 0;
    bool is_fused = false;
    const Tensor y = gated(c, shift, [&](const DeviceView& to) {
      is_fused = product.launch_silu_mul(x.view(), to, nullptr);
    });
    trial.classify(is_fused, "at once");
    ASSERT_TRUE(have_same_bits(y, is_fused ? expected : poisoned_gated(c)))
        << describe(c.shape) << ", " << c.num_tokens() << " tokens"
        << (is_fused ? "" : ", where it launched nothing");
    trial.count(c.num_tokens() * c.shape.num_out / 2);
    expect_same_fused(trial, c, x, expected);
  });
}

// What tensor cores do not take: the bits of a chain of fused multiply-adds on the host.
TEST_F(BaseProductOnGpu, PlainProductsAreAChain) {
  for_all_seeds(30, [](Trial& trial) {
    const Numbers numbers = trial.pick(0, 2) == 0 ? Numbers::normal : Numbers::wide;
    const Case c = make_case(trial, numbers, false);
    const std::vector<Judged> elements = judged(trial, c);
    const Tensor y = c.run({.kernel = ProductKernel::plain}, c.x);
    for (const Judged& e : elements) {
      float sum = 0;
      for (int64_t k = 0; k < c.shape.num_in; ++k) {
        sum = std::fma(float(c.x.get(e.row, k)), float(c.w.get(e.column, k)), sum);
      }
      if (c.shape.has_bias) sum += float(c.bias.get(int64_t(0), e.column));
      ASSERT_EQ(y.get(e.row, e.column), reference::round_to(c.shape.out, double{sum}));
    }
    expect_within_bound(trial, c, y, elements, false, "plain");
  });
}

/// Two products in a row, the second on what the first wrote over poison.
struct Chain {
  const BaseProduct &first, &second;
  const GuardedTensor &x, &between, &y;

  void launch(CUstream_st* stream, LaunchOrder order) const {
    LORATORY_CUDA_CHECK(cudaMemsetAsync(between.view().data, 0xFF, between.num_bytes(), stream));
    first.launch(x.view(), between.view(), stream, LaunchOrder::after_previous);
    second.launch(between.view(), y.view(), stream, order);
  }
};

Tensor replayed(const Chain& chain, LaunchOrder order, GuardedTensor& x, const Tensor& of_x) {
  const CapturedGraph graph([&](cudaStream_t stream) { chain.launch(stream, order); });
  x.write(of_x);
  for (int i = 0; i < 3; ++i) graph.replay();
  return chain.y.read();
}

// Planned products in a graph, replayed on another x; the second starts while the first still runs.
TEST_F(BaseProductOnGpu, GraphsAndOverlapsChangeNoBit) {
  const int64_t hidden = Trial::size(512, 128), wide = Trial::size(1024, 512);
  const auto matrix = [](int64_t rows, int64_t columns, uint64_t seed) {
    return random_matrix(Dtype::bf16, rows, columns, columns, Numbers::normal, seed);
  };
  const GuardedTensor up(matrix(wide, hidden, 1)), down(matrix(hidden, wide, 2));
  const BaseProduct first(products(), up.view(), nullptr, Dtype::bf16, 64);
  const BaseProduct second(products(), down.view(), nullptr, Dtype::bf16, 64);
  for (const int64_t tokens : {1, 8, 30, 64}) {
    const Tensor of_x = matrix(tokens, hidden, 3 + uint64_t(tokens));
    GuardedTensor x(matrix(tokens, hidden, 4)), between(poisoned(Dtype::bf16, tokens, wide, wide));
    GuardedTensor y(poisoned(Dtype::bf16, tokens, hidden, hidden));
    const Chain chain{first, second, x, between, y};
    x.write(of_x);
    chain.launch(nullptr, LaunchOrder::after_previous);
    LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
    const Tensor eager = y.read();
    for (const LaunchOrder order : {LaunchOrder::after_previous, LaunchOrder::overlaps_previous}) {
      x.write(matrix(tokens, hidden, 4));
      y.write(poisoned(Dtype::bf16, tokens, hidden, hidden));
      const Tensor again = replayed(chain, order, x, of_x);
      EXPECT_EQ(again.bytes(), eager.bytes()) << tokens << " tokens";
      record_.num_results += tokens * hidden;
    }
  }
}

// Plans come back from their file; on anything else they are refused and made anew.
TEST_F(BaseProductOnGpu, PlansAreKept) {
  const std::string file = testing::TempDir() + "products.json";
  const bool library = products().key().cublaslt != "none";
  const ProductOptions options{.cublaslt = library ? "" : "none", .cache_file = file};
  const ProductShape shape{.num_out = 512, .num_in = 256, .max_tokens = 100, .has_bias = true};
  ProductPlan made;
  {
    Products fresh(options);
    made = fresh.plan(shape);
    fresh.save();
  }
  ASSERT_EQ(made.size(), 5U);
  for (const ProductBucket& bucket : made) {
    EXPECT_GT(bucket.num_compared, 0);
    EXPECT_TRUE(std::isfinite(bucket.us));
    record_.num_results += bucket.num_compared;
  }
  Products kept(options);
  EXPECT_EQ(kept.plan(shape), made);  // times too: nothing was timed anew
  EXPECT_EQ(kept.notes(), std::vector<std::string>{});
  Products other({.order = ProductOrder::fast, .cublaslt = options.cublaslt, .cache_file = file});
  ASSERT_EQ(other.notes().size(), 1U);
  EXPECT_NE(other.notes()[0].find("not used: was made with order"), std::string::npos);
  std::filesystem::remove(file);
}

/// Too large to be drawn on the host.
struct LargeMatrix {
  LargeMatrix(int64_t rows, int64_t columns, uint64_t seed)
      : memory(make_device_buffer(size_t(rows * columns) * size_bytes(Dtype::bf16))),
        view(device_view(Dtype::bf16, memory.get(), {rows, columns})) {
    fill_random(view, seed, /*wide=*/true, nullptr);
  }
  DeviceBuffer memory;
  DeviceView view;
};

DeviceView first_rows(DeviceView all, int64_t num_rows) {
  all.shape[0] = num_rows;
  return all;
}

/// In steps that end and begin a bucket, each row has the bits that it has in the largest step, by
/// whatever kernel the plan chose.
void expect_one_class_of_bits(int64_t num_out, int64_t num_in) {
  const LargeMatrix w(num_out, num_in, 11), x(kMaxTokens, num_in, 12);
  const BaseProduct product(products(), w.view, nullptr, Dtype::bf16, kMaxTokens);
  const Tensor nothing = poisoned(Dtype::bf16, kMaxTokens, num_out, num_out);
  GuardedTensor y(nothing);
  const auto run = [&](int64_t tokens, ProductUse use) {
    y.write(nothing);
    product.launch(first_rows(x.view, tokens), first_rows(y.view(), tokens), nullptr,
                   LaunchOrder::after_previous, use);
    return y.read();
  };
  const Tensor all = run(kMaxTokens, ProductUse::alone);
  for (const int64_t tokens : {1, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257, 300}) {
    for (const ProductUse use : {ProductUse::alone, ProductUse::before_lora}) {
      const Tensor some = run(tokens, use);
      for (int64_t row = 0; row < kMaxTokens; ++row) {
        ASSERT_TRUE(same_row_bits(some, row, row < tokens ? all : nothing, row))
            << "row " << row << " of " << tokens << " tokens, " << describe(product.shape());
      }
    }
  }
  EXPECT_TRUE(y.guards_are_intact());
}

// The shapes of real models: whole plans, compared and timed, and what is chosen agrees over M.
TEST_F(BaseProductOnGpu, PlansOfModelShapesHaveOneClassOfBits) {
  if (Trial::size(1, 0) == 0) return;
  for (const auto& [num_out, num_in] : {std::pair{4096, 14336}, {2560, 9728}, {6144, 4096}}) {
    const ProductPlan& plan =
        products().plan({.num_out = num_out, .num_in = num_in, .max_tokens = kMaxTokens});
    for (const ProductBucket& bucket : plan) {
      EXPECT_GT(bucket.num_compared, 0) << bucket.tokens;
      EXPECT_TRUE(std::isfinite(bucket.us)) << bucket.tokens;
      record_.num_results += bucket.num_compared;
    }
    expect_one_class_of_bits(num_out, num_in);
  }
  for (const std::string& note : products().notes()) fmt::print("{}\n", note);
}

}  // namespace
}  // namespace loratory::gpu
