// Base experts on a GPU: the router, products grouped by expert, and the sum over a token's
// experts; skipped without a GPU. Router and sum have the bits of the reference; products lie
// within the bound of products, whatever size their segments have, and have the bits of a dense
// product.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "fuzz/support/layer_case.hpp"
#include "gpu/moe/expert_groups.hpp"
#include "gpu/moe/expert_product.hpp"
#include "gpu/moe/router.hpp"
#include "gpu/product/base_product.hpp"
#include "gpu/product/product_bound.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "guarded_tensor.hpp"
#include "model_case.hpp"
#include "reference/moe/moe_layer.hpp"
#include "reference/moe/router.hpp"
#include "reference/numerics/error_bound.hpp"
#include "upload.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::Tensor;
using reference::Vector;

class ExpertsOnGpu : public OnGpu {};

template <typename T>
std::vector<T> read(const DeviceBuffer& from, size_t count) {
  std::vector<T> out(count);
  LORATORY_CUDA_CHECK(
      cudaMemcpy(out.data(), from.get(), count * sizeof(T), cudaMemcpyDeviceToHost));
  return out;
}

// --- router -----------------------------------------------------------------------------------

struct RouterCase {
  Tensor logits;
  int32_t k = 1;
  RouterKind kind{};
  std::vector<int32_t> token_rows;
};

RouterCase router_case(const Trial& trial) {
  constexpr int64_t kExperts[] = {1, 2, 7, 8, 32, 33, 60, 64, 100, 128, 256, 511};
  const int64_t experts = kExperts[trial.pick(1, std::size(kExperts))];
  const int64_t tokens = 1 + trial.pick(2, 70);
  RouterCase out{
      .logits = random_matrix(Dtype::f32, tokens, experts, trial.seed(), 6, trial.pick(3, 2) * 3),
      .k = int32_t(1 + trial.pick(4, std::min<int64_t>(experts, 32))),
      .kind = RouterKind(trial.pick(5, 3)),
      .token_rows = {}};
  for (int64_t t = 0; t < tokens; ++t) {
    const auto at = [&](uint64_t i, int64_t below) {
      return trial.pick(100 + 8 * uint64_t(t) + i, below);
    };
    out.token_rows.push_back(at(0, 8) == 0 ? -1 : int32_t(t));
    const int64_t what = at(1, 10);
    for (int64_t e = 0; e < experts; ++e) {
      if (what == 0) out.logits.set(double(e % 3), t, e);  // ties
      if (what == 1) out.logits.set(e % 2 == 0 ? -0.0 : 0.0, t, e);
      if (what == 2) out.logits.set(1e4 * out.logits.get(t, e), t, e);
    }
    if (what == 3) out.logits.set(std::numeric_limits<double>::quiet_NaN(), t, at(2, experts));
    trial.classify(what == 3, "with NaN");
    trial.classify(what == 0, "with ties");
  }
  trial.classify(out.kind == RouterKind::softmax_of_chosen, "softmax of the chosen");
  return out;
}

// The reference's experts and weights, bit for bit: the fp64 exponentials of two libraries round to
// the same float but in about one of 2^28 cases, so a last bit is allowed where the sum has it too.
TEST_F(ExpertsOnGpu, RouterIsTheReference) {
  for_all_seeds(60, [](Trial& trial) {
    const RouterCase c = router_case(trial);
    const int64_t tokens = c.logits.shape()[0], experts = c.logits.shape()[1];
    const GuardedTensor logits(c.logits);
    const DeviceBuffer rows = upload(c.token_rows);
    const DeviceBuffer chosen = upload(std::vector<int32_t>(size_t(tokens * c.k), -7));
    const DeviceBuffer weights = upload(std::vector<float>(size_t(tokens * c.k), -7));
    route({.logits = logits.view(),
           .kind = c.kind,
           .k = c.k,
           .experts = reinterpret_cast<int32_t*>(chosen.get()),
           .weights = reinterpret_cast<float*>(weights.get()),
           .token_rows = reinterpret_cast<const int32_t*>(rows.get())},
          nullptr);
    LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
    const auto got = read<int32_t>(chosen, size_t(tokens * c.k));
    const auto weight = read<float>(weights, size_t(tokens * c.k));
    for (int64_t t = 0; t < tokens; ++t) {
      Vector<float> row(experts);
      bool has_nan = false;
      for (int64_t e = 0; e < experts; ++e) {
        row(e) = float(c.logits.get(t, e)), has_nan = has_nan || std::isnan(row(e));
      }
      const bool of_chosen = c.kind == RouterKind::softmax_of_chosen;
      reference::Routing<float> want;
      if (has_nan) {
        for (int32_t i = 0; i < c.k; ++i) {
          want.experts.push_back(i), want.weights.push_back(std::nanf(""));
        }
      } else {
        want = of_chosen ? reference::route_softmax_of_chosen(row, c.k)
                         : reference::route(row, c.k, c.kind == RouterKind::softmax_normalised);
      }
      for (int32_t i = 0; i < c.k; ++i) {
        const size_t at = size_t(t * c.k + i);
        if (c.token_rows[size_t(t)] < 0) {
          ASSERT_TRUE(got[at] == -1 && weight[at] == 0) << "padding, token " << t;
          continue;
        }
        ASSERT_EQ(got[at], want.experts[size_t(i)]) << "token " << t << " choice " << i;
        const float w = want.weights[size_t(i)];
        ASSERT_TRUE(weight[at] == w || (std::isnan(weight[at]) && std::isnan(w)) ||
                    std::fabs(weight[at] - w) <= 0x1p-22F * w)
            << weight[at] << " for " << w;
      }
    }
    trial.count(tokens * c.k);
  });
}

// --- products ---------------------------------------------------------------------------------

struct ProductCase {
  int64_t num_experts = 1, k = 1, tokens = 1;
  bool by_token = true;                                         ///< x; else by row
  Tensor weights{Dtype::bf16, {0, 0}}, x{Dtype::bf16, {0, 0}};  ///< [E·N, K], [T or T·k, K]
  int64_t num_out = 1, num_in = 1;
  std::vector<int32_t> experts = {};

  int64_t num_rows() const { return tokens * k; }
  int64_t x_row(int64_t row) const { return by_token ? row / k : row; }
};

enum class Numbers : uint8_t { integers, reals };

Tensor numbers(Dtype dtype, int64_t rows, int64_t columns, int64_t gap, Numbers what,
               uint64_t seed) {
  Tensor out = random_matrix(dtype, rows, columns, seed, 1, gap);
  for (int64_t i = 0; what == Numbers::integers && i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) out.set(std::round(2 * out.get(i, j)), i, j);
  }
  return out;
}

ProductCase product_case(const Trial& trial, Numbers what, bool is_f32) {
  constexpr int64_t kIns[] = {8, 16, 24, 64, 72, 128, 136, 520, 1024};
  constexpr int64_t kOuts[] = {8, 16, 24, 32, 40, 64, 136, 256, 264};
  constexpr int64_t kExperts[] = {1, 2, 3, 8, 20};
  constexpr int64_t kTokens[] = {1, 2, 5, 8, 9, 17, 33, 64, 65, 130, 300};
  ProductCase c;
  c.num_experts = kExperts[trial.pick(1, std::size(kExperts))];
  c.k = 1 + trial.pick(2, std::min<int64_t>(4, c.num_experts));
  c.tokens = std::min(kTokens[trial.pick(3, std::size(kTokens))], Trial::size(300, 40));
  c.num_in = std::min(kIns[trial.pick(4, std::size(kIns))], Trial::size(1024, 136));
  c.num_out = std::min(kOuts[trial.pick(5, std::size(kOuts))], Trial::size(264, 72));
  c.by_token = trial.pick(6, 2) == 0;
  Dtype dtype = trial.pick(7, 2) == 0 ? Dtype::bf16 : Dtype::f16;
  if (is_f32) dtype = Dtype::f32, c.num_in += trial.pick(8, 7), c.num_out += trial.pick(9, 7);
  const int64_t gap = is_f32 ? trial.pick(10, 3) : 8 * trial.pick(10, 2);
  c.weights = numbers(dtype, c.num_experts * c.num_out, c.num_in, gap, what, trial.seed());
  c.x = numbers(dtype, c.by_token ? c.tokens : c.num_rows(), c.num_in, gap, what, trial.seed() + 1);
  for (int64_t t = 0; t < c.tokens; ++t) {
    const auto order = reference::shuffled(c.num_experts, trial.seed() + uint64_t(t));
    const bool is_padding = trial.pick(uint64_t(100 + t), 9) == 0;
    for (int64_t i = 0; i < c.k; ++i) {
      c.experts.push_back(is_padding ? -1 : int32_t(order[size_t(i)]));
    }
    for (int64_t i = 0; is_padding && c.by_token && i < c.num_in; ++i) {
      c.x.set(std::numeric_limits<double>::quiet_NaN(), t, i);
    }
  }
  trial.classify(c.num_rows() > 64 * c.num_experts, "more than 64 rows an expert");
  trial.classify(c.by_token, "x by token");
  trial.classify(c.num_in % 64 != 0, "K ends within a panel");
  return c;
}

Tensor poisoned_rows(const ProductCase& c) {
  Tensor y(c.x.dtype(), {c.num_rows(), c.num_out});
  std::ranges::fill(y.bytes(), std::byte{0xFF});
  return y;
}

/// y by segments of a size, 0: as the rules choose. Rows in no group must stay as they are.
Tensor run(const ProductCase& c, int32_t segment_size) {
  const GuardedTensor x(c.x), w(c.weights), y(poisoned_rows(c));
  const DeviceBuffer experts = upload(c.experts);
  const ExpertGroups groups({.max_tokens = c.tokens,
                             .experts_per_token = int32_t(c.k),
                             .num_experts = int32_t(c.num_experts)});
  groups.build({.num_tokens = c.tokens, .experts = reinterpret_cast<const int32_t*>(experts.get())},
               nullptr);
  DeviceView weights = w.view();
  weights.num_axes = 3;
  weights.shape = {c.num_experts, c.num_out, c.num_in};
  weights.strides = {c.num_out * c.weights.strides()[0], c.weights.strides()[0], 1};
  const ExpertProductArgs args{.x = x.view(),
                               .weights = weights,
                               .y = y.view(),
                               .rows_per_x = c.by_token ? int32_t(c.k) : 1};
  if (segment_size == 0)
    expert_product(args, groups.views(), nullptr);
  else
    expert_product_of(segment_size, args, groups.views(), nullptr);
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  EXPECT_TRUE(y.guards_are_intact()) << "written around y";
  const Tensor out = y.read();
  for (int64_t row = 0; row < c.num_rows(); ++row) {
    if (c.experts[size_t(row)] >= 0) continue;
    EXPECT_TRUE(reference::same_row(out, row, poisoned_rows(c), row)) << "padding was written";
  }
  return out;
}

ProductFacts facts_of(const ProductCase& c, int64_t row, int64_t n) {
  ProductFacts facts{.num_in = c.num_in};
  const int64_t w = c.experts[size_t(row)] * c.num_out + n;
  for (int64_t i = 0; i < c.num_in; ++i) {
    const double term = c.x.get(c.x_row(row), i) * c.weights.get(w, i);
    facts.result += term, facts.magnitude += std::abs(term);
  }
  return facts;
}

/// Some elements, the corners among them: the others are held by their bits.
double judged(const Trial& trial, const ProductCase& c, const Tensor& y, bool exactly) {
  double worst = 0;
  for (uint64_t i = 0; i < 400; ++i) {
    const int64_t row = i < 2 ? 0 : i < 4 ? c.num_rows() - 1 : trial.pick(1000 + i, c.num_rows());
    const int64_t n = i < 4 ? int64_t(i % 2) * (c.num_out - 1) : trial.pick(2000 + i, c.num_out);
    if (c.experts[size_t(row)] < 0) continue;
    const ProductFacts facts = facts_of(c, row, n);
    const Dtype dtype = y.dtype();
    if (exactly) {
      EXPECT_EQ(y.get(row, n), reference::round_to(dtype, facts.result))
          << "row " << row << " column " << n;
      continue;
    }
    const double bound = product_error_bound(facts, dtype != Dtype::f32, dtype);
    const double ratio = reference::error_over(y.get(row, n), facts.result, bound, dtype);
    EXPECT_LE(ratio, 1) << "row " << row << " column " << n << ": " << y.get(row, n) << " for "
                        << facts.result;
    worst = std::max(worst, ratio);
  }
  trial.count(400, worst);
  return worst;
}

// P20: small integers are exact, reals within the bound; every size of segments gives the same
// bits.
TEST_F(ExpertsOnGpu, ProductsAreWithinTheBoundAndAgree) {
  for_all_seeds(60, [](Trial& trial) {
    const bool exactly = trial.pick(0, 3) == 0;
    const ProductCase c = product_case(trial, exactly ? Numbers::integers : Numbers::reals, false);
    const Tensor chosen = run(c, 0);
    judged(trial, c, chosen, exactly);
    for (const int32_t size : kGroupSizes) {
      EXPECT_TRUE(have_same_bits(run(c, size), chosen)) << "segments of " << size;
    }
  });
}

TEST_F(ExpertsOnGpu, ProductsOfF32AreWithinTheBound) {
  for_all_seeds(24, [](Trial& trial) {
    const bool exactly = trial.pick(0, 3) == 0;
    const ProductCase c = product_case(trial, exactly ? Numbers::integers : Numbers::reals, true);
    judged(trial, c, run(c, 0), exactly);
  });
}

// P7: a row has the bits it has alone, beside any other rows and NaN.
TEST_F(ExpertsOnGpu, ARowHasTheBitsItHasAlone) {
  for_all_seeds(24, [](Trial& trial) {
    ProductCase c = product_case(trial, Numbers::reals, false);
    const Tensor all = run(c, 0);
    const int64_t t = trial.pick(3000, c.tokens);
    ProductCase alone = c;
    alone.tokens = 1;
    alone.experts.assign(c.experts.begin() + t * c.k, c.experts.begin() + (t + 1) * c.k);
    alone.x = Tensor(c.x.dtype(), {c.by_token ? 1 : c.k, c.num_in});
    for (int64_t i = 0; i < alone.x.shape()[0]; ++i) {
      for (int64_t j = 0; j < c.num_in; ++j) {
        alone.x.set(c.x.get(c.by_token ? t : t * c.k + i, j), i, j);
      }
    }
    const Tensor one = run(alone, 0);
    for (int64_t i = 0; i < c.k; ++i) {
      EXPECT_TRUE(reference::same_row(one, i, all, t * c.k + i)) << "choice " << i;
    }
    for (int64_t j = 0; j < c.num_in; ++j) {  // NaN beside everybody else
      for (int64_t row = 0; row < c.x.shape()[0]; ++row) {
        const bool is_own = c.by_token ? row == t : row / c.k == t;
        if (!is_own) c.x.set(std::numeric_limits<double>::quiet_NaN(), row, j);
      }
    }
    const Tensor beside_nan = run(c, 0);
    for (int64_t i = 0; i < c.k; ++i) {
      EXPECT_TRUE(reference::same_row(beside_nan, t * c.k + i, all, t * c.k + i));
    }
    trial.count(c.num_rows() * c.num_out);
  });
}

// The chain of an expert is that of a dense product of order exact.
TEST_F(ExpertsOnGpu, OneExpertHasTheBitsOfADenseProduct) {
  const int64_t tokens = 40, num_in = 520, num_out = 136;
  ProductCase c{.tokens = tokens,
                .weights = numbers(Dtype::bf16, num_out, num_in, 0, Numbers::reals, 1),
                .x = numbers(Dtype::bf16, tokens, num_in, 0, Numbers::reals, 2),
                .num_out = num_out,
                .num_in = num_in,
                .experts = std::vector<int32_t>(size_t(tokens), 0)};
  Products products(ProductOptions{.cublaslt = "none"});
  const GuardedTensor w(c.weights), x(c.x), y(poisoned_rows(c));
  const BaseProduct dense(products, w.view(), nullptr, Dtype::bf16, tokens);
  dense.launch(x.view(), y.view(), nullptr, LaunchOrder::after_previous);
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  EXPECT_TRUE(have_same_bits(y.read(), run(c, 0)));
  record_.num_results = tokens * num_out;
}

// --- the sum over experts -----------------------------------------------------------------------

// The bits of combine_experts() of the reference; rows of experts elsewhere are NaN and not read.
TEST_F(ExpertsOnGpu, SumsAreThoseOfTheReference) {
  for_all_seeds(40, [](Trial& trial) {
    constexpr int64_t kSizes[] = {1, 7, 8, 100, 2048, 2880, 5000};
    const int64_t tokens = 1 + trial.pick(1, 30), k = 1 + trial.pick(2, 8);
    const int64_t size = kSizes[trial.pick(3, Trial::size(std::size(kSizes), 4))];
    const int64_t num_experts = k + trial.pick(4, 9);
    const Dtype dtype = model_dtype(trial, 5);
    Tensor z = random_matrix(dtype, tokens * k, size, trial.seed(), 3, trial.pick(6, 2) * 5);
    std::vector<int32_t> experts, map;
    std::vector<float> weights;
    for (int64_t e = 0; e < num_experts; ++e) {
      map.push_back(trial.pick(uint64_t(100 + e), 4) == 0 ? -1 : int32_t(e));
    }
    const bool has_map = trial.pick(7, 2) == 0, is_weighted = trial.pick(8, 3) != 0;
    for (int64_t t = 0; t < tokens; ++t) {
      const auto order = reference::shuffled(num_experts, trial.seed() + uint64_t(t));
      for (int64_t i = 0; i < k; ++i) {
        const int32_t e = int32_t(order[size_t(i)]);
        experts.push_back(e);
        weights.push_back(float(0.01 + 0.09 * double(trial.pick(uint64_t(500 + i), 11))));
        for (int64_t n = 0; has_map && map[size_t(e)] < 0 && n < size; ++n) {
          z.set(std::numeric_limits<double>::quiet_NaN(), t * k + i, n);
        }
      }
    }
    reference::MoeArgs args;
    args.rows = {k, experts, has_map ? std::span<const int32_t>(map) : std::span<const int32_t>()};
    args.router_weights = weights;
    args.router_weight_on_input = !is_weighted;
    args.out = dtype;
    const Tensor want = reference::combine_experts(z.view(), args);
    const GuardedTensor from(z);
    GuardedTensor y(poisoned(want));
    const DeviceBuffer at_experts = upload(experts), at_map = upload(map), at_w = upload(weights);
    combine_experts(
        {.z = from.view(),
         .y = y.view(),
         .router_weights = is_weighted ? reinterpret_cast<const float*>(at_w.get()) : nullptr,
         .experts = reinterpret_cast<const int32_t*>(at_experts.get()),
         .expert_map = has_map ? reinterpret_cast<const int32_t*>(at_map.get()) : nullptr},
        nullptr);
    LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
    EXPECT_TRUE(y.guards_are_intact());
    EXPECT_TRUE(have_same_bits(y.read(), want));
    trial.count(tokens * size);
    trial.classify(has_map, "experts elsewhere");
  });
}

}  // namespace
}  // namespace loratory::gpu
