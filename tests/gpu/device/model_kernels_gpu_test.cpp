// The kernels around the products of a model: each within its own bound of float64
// (docs/error_bounds.md, "The kernels of a model"), exact where numbers are small integers, and
// with bits that follow from a token's own numbers alone.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>

#include "captured_graph.hpp"
#include "fuzz/support/layer_case.hpp"
#include "gpu/model/activation.hpp"
#include "gpu/model/embedding.hpp"
#include "gpu/model/norm.hpp"
#include "gpu/model/rotary.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "gpu/runtime/device_ability.hpp"
#include "guarded_tensor.hpp"
#include "model_case.hpp"
#include "reference/model/rope.hpp"
#include "reference/moe/activation.hpp"
#include "upload.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::Tensor;

constexpr double kUnit = 0x1p-24;
constexpr double kSecondOrder = 1 + 0x1p-10;

double gamma(int64_t n) { return double(n) * kUnit / (1 - double(n) * kUnit); }

/// Of x·s, s = 1 / sqrt(mean of n squares + eps), times a weight; relative.
double norm_error(int64_t n) {
  return (gamma(n + 3) * (1 + gamma(n + 3)) / 2 + 3 * kUnit) * kSecondOrder;
}

/// A result that is off by `error`, and its rounding to dtype.
double rounded_bound(Dtype dtype, double exact, double error) {
  return error + unit_roundoff(dtype) * (std::fabs(exact) + error) + underflow_unit(dtype);
}

class ModelKernels : public OnGpu {};

// --- norm -----------------------------------------------------------------------------------

struct NormCase {
  Tensor x, delta, weight, y;
  double eps = 0;
  bool adds = false;
  std::optional<std::vector<int32_t>> rows = {};
  int64_t shift = 0;  ///< of every tensor, in numbers
};

struct NormResult {
  Tensor x, y;
};

NormResult run(const NormCase& c) {
  GuardedTensor x(c.x, c.shift), y(c.y, c.shift);
  const GuardedTensor delta(c.delta, c.shift), weight(c.weight, c.shift);
  const DeviceBuffer rows = upload(c.rows.value_or(std::vector<int32_t>{}));
  RmsNormArgs args{.x = x.view(), .weight = weight.view(), .y = y.view(), .eps = c.eps};
  if (c.rows) args.rows = reinterpret_cast<const int32_t*>(rows.get());
  if (c.adds)
    add_rms_norm(args, delta.view(), nullptr);
  else
    rms_norm(args, nullptr);
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  EXPECT_TRUE(x.guards_are_intact() && y.guards_are_intact()) << "written around a tensor";
  EXPECT_TRUE(have_same_bits(delta.read(), c.delta)) << "delta was written";
  return {x.read(), y.read()};
}

Tensor random_vector(Dtype dtype, int64_t size, uint64_t seed) {
  Tensor out(dtype, {size});
  for (int64_t i = 0; i < size; ++i) out.set(unit_number(seed, uint64_t(i)), i);
  return out;
}

NormCase norm_case(const Trial& trial) {
  constexpr int64_t kHidden[] = {1,    5,    8,    64,   100,  896,   1024,  2048,
                                 3584, 4096, 5120, 8191, 8192, 16384, 16392, 20001};
  const Dtype dtype = model_dtype(trial, 0);
  const int64_t hidden = kHidden[trial.pick(1, Trial::size(std::size(kHidden), 10))];
  const int64_t rows = 1 + trial.pick(2, 40);
  const int64_t gap = trial.pick(3, 3) * trial.pick(4, 9);
  const double scale = std::exp(trial.pick(5, 12) - 6);
  const Tensor x = random_matrix(dtype, rows, hidden, trial.seed(), scale, gap);
  NormCase out{.x = x,
               .delta = random_matrix(dtype, rows, hidden, trial.seed() + 1, scale, gap),
               .weight = random_vector(dtype, hidden, trial.seed() + 2),
               .y = poisoned(x),
               .eps = trial.pick(6, 2) == 0 ? 1e-5 : 1e-6,
               .adds = trial.pick(7, 2) == 0,
               .shift = trial.pick(8, 4) == 0 ? 1 : 0};
  if (trial.pick(9, 3) == 0) {
    out.rows.emplace();
    for (int64_t i = trial.pick(10, 50); i >= 0; --i) {
      out.rows->push_back(int32_t(trial.pick(uint64_t(100 + i), rows + 1) - 1));
    }
    out.y = random_matrix(dtype, int64_t(out.rows->size()), hidden, 0, 1, gap);
    out.y = poisoned(out.y);
  }
  trial.classify(out.rows.has_value(), "chosen rows");
  trial.classify(out.adds, "with delta");
  trial.classify(out.shift != 0 || gap % 8 != 0 || hidden % 8 != 0, "unaligned");
  trial.classify(hidden > 16384, "more than registers hold");
  return out;
}

/// x + delta as the dtype keeps it: one fp32 sum, one rounding.
Tensor sums_of(const NormCase& c) {
  Tensor out = c.x;
  if (!c.adds) return out;
  for (int64_t i = 0; i < out.shape()[0]; ++i) {
    for (int64_t j = 0; j < out.shape()[1]; ++j) {
      out.set(double(float(c.x.get(i, j)) + float(c.delta.get(i, j))), i, j);
    }
  }
  return out;
}

Expected expected_norm(const NormCase& c, const Tensor& sums) {
  Expected out;
  const int64_t hidden = sums.shape()[1];
  for (int64_t i = 0; i < c.y.shape()[0]; ++i) {
    const int64_t row = c.rows ? (*c.rows)[size_t(i)] : i;
    double squares = 0;
    for (int64_t j = 0; row >= 0 && j < hidden; ++j) squares += std::pow(sums.get(row, j), 2);
    const double scale = 1 / std::sqrt(squares / double(hidden) + c.eps);
    for (int64_t j = 0; j < hidden; ++j) {
      const double weight = c.weight.get(j);
      const double exact = row < 0 ? 0 : weight * sums.get(row, j) * scale;
      const double error = norm_error(hidden) * std::fabs(exact) + 0x1p-149 * (1 + weight);
      out.exact.push_back(exact);
      out.bound.push_back(rounded_bound(sums.dtype(), exact, error));
    }
  }
  return out;
}

TEST_F(ModelKernels, NormLiesWithinTheBound) {
  for_all_seeds(60, [](const Trial& trial) {
    const NormCase c = norm_case(trial);
    const NormResult result = run(c);
    const Tensor sums = sums_of(c);
    EXPECT_TRUE(have_same_bits(result.x, c.rows ? c.x : sums)) << "x + delta";
    trial.count(result.y.shape()[0] * result.y.shape()[1],
                judged(result.y, expected_norm(c, sums)));
  });
}

TEST_F(ModelKernels, NormOfARowDependsOnNothingElse) {
  for_all_seeds(40, [](const Trial& trial) {
    NormCase c = norm_case(trial);
    c.rows.reset();
    c.y = poisoned(c.x);
    const NormResult all = run(c);
    const int64_t row = trial.pick(20, c.x.shape()[0]);
    NormCase one = c;
    one.x = rows_of(c.x, {row}), one.delta = rows_of(c.delta, {row}), one.y = poisoned(one.x);
    one.shift = 0;
    EXPECT_TRUE(have_same_bits(run(one).y, rows_of(all.y, {row}))) << "alone, aligned";
    NormCase chosen = c;
    chosen.rows = {int32_t(row), -1, int32_t(row)};
    chosen.y = poisoned(random_matrix(c.x.dtype(), 3, c.x.shape()[1], 0));
    Tensor expected = rows_of(all.y, {row, row, row});
    for (int64_t j = 0; j < expected.shape()[1]; ++j) expected.set(0, 1, j);
    EXPECT_TRUE(have_same_bits(run(chosen).y, expected)) << "chosen twice";
    trial.count(4 * c.x.shape()[1]);
  });
}

// Powers of two of one size: the scale is a power of two, and nothing is rounded.
TEST_F(ModelKernels, NormOfPowersOfTwoIsExact) {
  for_all_seeds(12, [](const Trial& trial) {
    NormCase c = norm_case(trial);
    c.rows.reset(), c.adds = false, c.eps = 0, c.y = poisoned(c.x);
    const int64_t hidden = c.x.shape()[1];
    Tensor expected = c.y;
    for (int64_t j = 0; j < hidden; ++j) c.weight.set(double(trial.pick(uint64_t(j), 17) - 8), j);
    for (int64_t i = 0; i < c.x.shape()[0]; ++i) {
      const double size = std::ldexp(1, int(trial.pick(uint64_t(300 + i), 9)) - 4);
      for (int64_t j = 0; j < hidden; ++j) {
        const double sign = trial.pick(uint64_t(1000 + i * hidden + j), 2) == 0 ? 1 : -1;
        c.x.set(sign * size, i, j);
        expected.set(sign * c.weight.get(j), i, j);
      }
    }
    const NormResult result = run(c);
    for (int64_t i = 0; i < c.x.shape()[0]; ++i) {
      for (int64_t j = 0; j < hidden; ++j) {
        ASSERT_EQ(result.y.get(i, j), expected.get(i, j)) << "row " << i << " column " << j;
      }
    }
    trial.count(c.x.shape()[0] * hidden);
  });
}

// --- embedding ------------------------------------------------------------------------------

TEST_F(ModelKernels, EmbeddingCopiesRows) {
  for_all_seeds(30, [](const Trial& trial) {
    constexpr int64_t kHidden[] = {1, 7, 64, 100, 1024, 4096};
    const Dtype dtype = model_dtype(trial, 0);
    const int64_t hidden = kHidden[trial.pick(1, Trial::size(6, 4))], vocab = 50;
    const int64_t gap = trial.pick(2, 2) * trial.pick(3, 9), shift = trial.pick(4, 2);
    const Tensor table = random_matrix(dtype, vocab, hidden, trial.seed(), 1, gap);
    // A few ids lie outside the table.
    const StepCase step = step_case(trial, 80, vocab + 2);
    const StepOnGpu on_gpu(step);
    const GuardedTensor table_on_gpu(table, shift);
    const Tensor nan = poisoned(random_matrix(dtype, step.num_tokens(), hidden, 0, 1, gap));
    const GuardedTensor x(nan, shift);
    const DeviceBuffer ids = make_device_buffer(size_t(step.num_tokens()) * 4);
    embed(
        on_gpu.view(),
        {.table = table_on_gpu.view(), .x = x.view(), .ids = reinterpret_cast<int32_t*>(ids.get())},
        nullptr);
    std::vector<int32_t> got(size_t(step.num_tokens()));
    LORATORY_CUDA_CHECK(cudaMemcpy(got.data(), ids.get(), got.size() * 4, cudaMemcpyDeviceToHost));
    Tensor expected = nan;
    for (int64_t t = 0; t < step.num_tokens(); ++t) {
      const bool is_padding = step.token_rows[size_t(t)] < 0;
      const int32_t written = step.token_ids[size_t(t)];
      const int32_t id = is_padding    ? -1
                         : written < 0 ? step.last_sampled[size_t(-1 - written)]
                                       : written;
      EXPECT_EQ(got[size_t(t)], id) << "token " << t;
      const bool exists = id >= 0 && id < vocab;
      for (int64_t j = 0; j < hidden; ++j) expected.set(exists ? table.get(id, j) : 0, t, j);
    }
    EXPECT_TRUE(have_same_bits(x.read(), expected));
    EXPECT_TRUE(x.guards_are_intact());
    trial.classify(gap % 8 != 0 || shift != 0 || hidden % 8 != 0, "unaligned");
    trial.count(step.num_tokens() * hidden);
  });
}

// --- activation -----------------------------------------------------------------------------

Tensor run_activation(decltype(silu_mul)& activation, const Tensor& gate_up, int64_t gap,
                      int64_t shift) {
  const int64_t size = gate_up.shape()[1] / 2;
  const Tensor nan = poisoned(random_matrix(gate_up.dtype(), gate_up.shape()[0], size, 0, 1, gap));
  const GuardedTensor in(gate_up, shift), y(nan, shift);
  activation(in.view(), y.view(), nullptr, LaunchOrder::after_previous);
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  EXPECT_TRUE(have_same_bits(in.read(), gate_up)) << "gate or up was written";
  EXPECT_TRUE(y.guards_are_intact()) << "written around y";
  return y.read();
}
Tensor run_silu(const Tensor& gate_up, int64_t gap, int64_t shift) {
  return run_activation(silu_mul, gate_up, gap, shift);
}

Expected expected_silu(const Tensor& gate_up) {
  Expected out;
  const int64_t size = gate_up.shape()[1] / 2;
  for (int64_t t = 0; t < gate_up.shape()[0]; ++t) {
    for (int64_t j = 0; j < size; ++j) {
      const double gate = gate_up.get(t, j), up = gate_up.get(t, size + j);
      const double power_share = 1 / (1 + std::exp(gate));  // e^-g / (1 + e^-g)
      const double exact = gate / (1 + std::exp(-gate)) * up;
      const double relative = (2 * std::fabs(gate) + 4) * power_share + 5;
      const double error =
          relative * kUnit * kSecondOrder * std::fabs(exact) + 0x1p-119 * std::fabs(up) + 0x1p-149;
      out.exact.push_back(exact);
      out.bound.push_back(rounded_bound(gate_up.dtype(), exact, error));
    }
  }
  return out;
}

TEST_F(ModelKernels, SiluMulLiesWithinTheBound) {
  for_all_seeds(40, [](const Trial& trial) {
    constexpr int64_t kSizes[] = {1, 9, 64, 1000, 2048, 4864, 14336};
    const Dtype dtype = model_dtype(trial, 0);
    const int64_t size = kSizes[trial.pick(1, Trial::size(7, 5))], tokens = 1 + trial.pick(2, 20);
    const int64_t gap = trial.pick(3, 2) * trial.pick(4, 9), shift = trial.pick(5, 4) == 0 ? 1 : 0;
    Tensor gate_up = random_matrix(dtype, tokens, 2 * size, trial.seed(), 4, gap);
    if (trial.pick(6, 3) == 0) {  // gates that saturate, and beyond what e^-g has numbers for
      for (int64_t j = 0; j < size; ++j) gate_up.set(gate_up.get(0, j) * 40, 0, j);
    }
    const Tensor y = run_silu(gate_up, gap, shift);
    trial.count(tokens * size, judged(y, expected_silu(gate_up)));
    const int64_t row = trial.pick(7, tokens);
    EXPECT_TRUE(have_same_bits(run_silu(rows_of(gate_up, {row}), 0, 0), rows_of(y, {row})))
        << "alone";
    trial.classify(shift != 0 || gap % 8 != 0 || size % 8 != 0, "unaligned");
  });
}

TEST_F(ModelKernels, SiluMulOfLargeGatesIsExact) {
  for_all_seeds(6, [](const Trial& trial) {
    Tensor gate_up(model_dtype(trial, 0), {3, 200});
    for (int64_t t = 0; t < 3; ++t) {
      for (int64_t j = 0; j < 100; ++j) {
        gate_up.set(j % 5 == 0 ? -256.0 : double(32 << trial.pick(uint64_t(j), 3)), t, j);
        gate_up.set(double(trial.pick(uint64_t(1000 + 100 * t + j), 31) - 15), t, 100 + j);
      }
    }
    const Tensor y = run_silu(gate_up, 0, 0);
    for (int64_t t = 0; t < 3; ++t) {
      for (int64_t j = 0; j < 100; ++j) {
        const double gate = gate_up.get(t, j);
        EXPECT_EQ(y.get(t, j), gate < 0 ? 0 : gate * gate_up.get(t, 100 + j));
      }
    }
    trial.count(300);
  });
}

// gate and up alternate.
Expected expected_gpt_oss(const Tensor& gate_up) {
  constexpr double kAlpha = reference::kGptOssAlpha, kLimit = reference::kGptOssLimit;
  Expected out;
  for (int64_t t = 0; t < gate_up.shape()[0]; ++t) {
    for (int64_t j = 0; j < gate_up.shape()[1] / 2; ++j) {
      const double gate = std::min(gate_up.get(t, 2 * j), kLimit);
      const double up = std::clamp(gate_up.get(t, 2 * j + 1), -kLimit, kLimit) + 1;
      const double power_share = 1 / (1 + std::exp(kAlpha * gate));
      const double exact = gate / (1 + std::exp(-kAlpha * gate)) * up;
      const double relative = (2 * kAlpha * std::fabs(gate) + 4) * power_share + 6;
      const double error = relative * kUnit * kSecondOrder * std::fabs(exact) + 0x1p-116 + 0x1p-149;
      out.exact.push_back(exact);
      out.bound.push_back(rounded_bound(gate_up.dtype(), exact, error));
    }
  }
  return out;
}

// [1.33] [1.39]
TEST_F(ModelKernels, GptOssMulLiesWithinTheBound) {
  for_all_seeds(30, [](const Trial& trial) {
    constexpr int64_t kSizes[] = {1, 9, 64, 1000, 2048, 2880};
    const Dtype dtype = model_dtype(trial, 0);
    const int64_t size = kSizes[trial.pick(1, Trial::size(6, 5))], tokens = 1 + trial.pick(2, 20);
    const int64_t gap = trial.pick(3, 2) * trial.pick(4, 9), shift = trial.pick(5, 4) == 0 ? 1 : 0;
    // Up to 12, so that a half is clamped; gates of one row beyond what e^-g has numbers for.
    Tensor gate_up = random_matrix(dtype, tokens, 2 * size, trial.seed(), 12, gap);
    if (trial.pick(6, 3) == 0) {
      for (int64_t j = 0; j < size; ++j) gate_up.set(gate_up.get(0, 2 * j) * 9, 0, 2 * j);
    }
    const Tensor y = run_activation(gpt_oss_mul, gate_up, gap, shift);
    trial.count(tokens * size, judged(y, expected_gpt_oss(gate_up)));
    const int64_t row = trial.pick(7, tokens);
    const Tensor alone = run_activation(gpt_oss_mul, rows_of(gate_up, {row}), 0, 0);
    EXPECT_TRUE(have_same_bits(alone, rows_of(y, {row}))) << "alone";
    trial.classify(shift != 0 || gap % 8 != 0 || size % 8 != 0, "unaligned");
  });
}

TEST_F(ModelKernels, GptOssMulKeepsNan) {
  Tensor gate_up(Dtype::f32, {1, 16});
  for (int64_t j = 0; j < 16; ++j) gate_up.set(j == 4 || j == 11 ? NAN : 1, 0, j);
  const Tensor y = run_activation(gpt_oss_mul, gate_up, 0, 0);
  for (int64_t j = 0; j < 8; ++j) EXPECT_EQ(std::isnan(y.get(0, j)), j == 2 || j == 5) << j;
}

// --- rotary ---------------------------------------------------------------------------------

reference::RopeConfig rope_config(const Trial& trial) {
  using reference::RopeScaling;
  constexpr RopeScaling kScalings[] = {RopeScaling::none, RopeScaling::linear, RopeScaling::dynamic,
                                       RopeScaling::llama3, RopeScaling::yarn};
  const RopeScaling scaling = kScalings[trial.pick(10, 5)];
  trial.classify(scaling != RopeScaling::none, "scaled angles");
  return {.theta = trial.pick(11, 2) == 0 ? 1e4 : 1e6,
          .scaling = scaling,
          .factor = 4,
          .original_max_position_embeddings = scaling == RopeScaling::dynamic ? 4096 : 64};
}

struct RotaryCase {
  StepCase step;
  reference::RopeConfig rope;
  Tensor qkv, q_norm, k_norm;
  bool has_norms = false;
  int32_t num_heads = 0, kv_heads = 0, head_dim = 0;
  double eps = 1e-6;

  Tensor empty_kv() const {
    return poisoned(
        Tensor(qkv.dtype(), {step.num_blocks, kv_heads, step.block_size * int64_t(head_dim)}));
  }
};

struct RotaryResult {
  Tensor qkv, k, v;
};

RotaryResult run(const RotaryCase& c) {
  const RopeTables tables = make_rope_tables(c.rope, c.head_dim, 128);
  const DeviceBuffer cos = upload(tables.cos), sin = upload(tables.sin);
  const GuardedTensor qkv(c.qkv), k(c.empty_kv()), v(c.empty_kv());
  const GuardedTensor q_norm(c.q_norm), k_norm(c.k_norm);
  const StepOnGpu step(c.step);
  rotary(step.view(),
         {.qkv = qkv.view(),
          .num_heads = c.num_heads,
          .cos = device_view(Dtype::f32, cos.get(), {128, c.head_dim / 2}),
          .sin = device_view(Dtype::f32, sin.get(), {128, c.head_dim / 2}),
          .q_norm = c.has_norms ? q_norm.view().data : nullptr,
          .k_norm = c.has_norms ? k_norm.view().data : nullptr,
          .eps = c.eps,
          .kv = {.dtype = c.qkv.dtype(),
                 .k = k.view().data,
                 .v = v.view().data,
                 .num_blocks = c.step.num_blocks,
                 .kv_heads = c.kv_heads,
                 .block_size = c.step.block_size,
                 .head_dim = c.head_dim}},
         nullptr);
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  EXPECT_TRUE(qkv.guards_are_intact() && k.guards_are_intact() && v.guards_are_intact())
      << "written around a tensor";
  return {qkv.read(), k.read(), v.read()};
}

RotaryCase rotary_case(const Trial& trial) {
  const Dtype dtype = model_dtype(trial, 0);
  constexpr int32_t kDims[] = {2, 8, 16, 32, 64, 64, 80, 128, 128, 256};
  const int32_t head_dim = kDims[trial.pick(1, 10)];
  const auto kv_heads = int32_t(1 + trial.pick(2, 4));
  const auto num_heads = int32_t(kv_heads * (1 + trial.pick(3, 5)));
  const StepCase step = step_case(trial, Trial::size(300, 20), 1000);
  const int64_t columns = int64_t(num_heads + 2 * kv_heads) * head_dim;
  const int64_t gap = 8 * trial.pick(4, 3);
  RotaryCase out{.step = step,
                 .rope = rope_config(trial),
                 .qkv = random_matrix(dtype, step.num_tokens(), columns, trial.seed(), 3, gap),
                 .q_norm = random_vector(dtype, head_dim, trial.seed() + 1),
                 .k_norm = random_vector(dtype, head_dim, trial.seed() + 2),
                 .has_norms = trial.pick(5, 2) == 0,
                 .num_heads = num_heads,
                 .kv_heads = kv_heads,
                 .head_dim = head_dim};
  trial.classify(out.has_norms, "norms of q and k");
  trial.classify(head_dim < 64 || head_dim > 128, "another head_dim than 64 and 128");
  // A CTA of 128 threads has few heads, one of 256 takes more of them in turns.
  const int64_t lanes = columns / 16, ctas = step.num_tokens() * ((lanes + 127) / 128);
  trial.classify(lanes > 128 && ctas <= 2 * num_sms(), "a few heads for each CTA");
  trial.classify(lanes > 256 && ctas > 2 * num_sms(), "heads in turns");
  return out;
}

/// Head `head` of token t, turned, and how far a kernel's may be from it.
Expected expected_head(const RotaryCase& c, int64_t t, int64_t head, const Tensor& weight) {
  const int64_t dim = c.head_dim, half = dim / 2;
  const std::vector<int64_t> position{c.step.positions[size_t(t)]};
  const auto turn = reference::rotations<double>(c.rope, dim, position);
  double squares = 0;
  for (int64_t i = 0; i < dim; ++i) squares += std::pow(c.qkv.get(t, head * dim + i), 2);
  const double scale = 1 / std::sqrt(squares / double(dim) + c.eps);
  const auto number = [&](int64_t i) {
    const double v = c.qkv.get(t, head * dim + i);
    return c.has_norms ? v * scale * weight.get(i) : v;
  };
  const double relative = ((c.has_norms ? norm_error(dim) : 0) + 3 * kUnit) * kSecondOrder;
  Expected out;
  for (int64_t i = 0; i < dim; ++i) {
    const int64_t pair = i % half;
    const double sign = i < half ? -1 : 1;
    const double own = number(i) * turn.cos(pair, 0);
    const double other = sign * number(i < half ? i + half : i - half) * turn.sin(pair, 0);
    const double error = relative * (std::fabs(own) + std::fabs(other)) + 0x1p-146;
    out.exact.push_back(own + other);
    out.bound.push_back(rounded_bound(c.qkv.dtype(), own + other, error));
  }
  return out;
}

/// Judges what came of a head, and makes it what was there before.
double judge_and_restore(const RotaryCase& c, const Expected& expected, Tensor& where, int64_t row,
                         int64_t column, const Tensor& before) {
  Tensor got(c.qkv.dtype(), {1, c.head_dim});
  const auto offset = size_t(row * where.strides()[0] + column) * size_bytes(c.qkv.dtype());
  std::memcpy(got.bytes().data(), where.bytes().data() + offset, got.bytes().size());
  std::memcpy(where.bytes().data() + offset, before.bytes().data() + offset, got.bytes().size());
  return judged(got, expected);
}

TEST_F(ModelKernels, RotaryLiesWithinTheBound) {
  for_all_seeds(40, [](const Trial& trial) {
    const RotaryCase c = rotary_case(trial);
    RotaryResult result = run(c);
    const Tensor empty = c.empty_kv();
    const int64_t dim = c.head_dim, block = c.step.block_size * dim;
    double worst = 0;
    for (int64_t t = 0; t < c.step.num_tokens(); ++t) {
      if (c.step.token_rows[size_t(t)] < 0) continue;
      for (int64_t head = 0; head < c.num_heads; ++head) {
        worst = std::max(worst, judge_and_restore(c, expected_head(c, t, head, c.q_norm),
                                                  result.qkv, t, head * dim, c.qkv));
      }
      for (int64_t head = 0; head < c.kv_heads; ++head) {
        const int64_t place = head * block + c.step.place_of(t) * dim;
        worst =
            std::max(worst, judge_and_restore(c, expected_head(c, t, c.num_heads + head, c.k_norm),
                                              result.k, c.step.block_of(t), place, empty));
        Expected v;
        for (int64_t i = 0; i < dim; ++i) {
          v.exact.push_back(c.qkv.get(t, (c.num_heads + c.kv_heads + head) * dim + i));
          v.bound.push_back(0x1p-1000);  // a copy
        }
        judge_and_restore(c, v, result.v, c.step.block_of(t), place, empty);
      }
    }
    EXPECT_TRUE(have_same_bits(result.qkv, c.qkv)) << "k, v or padding was written";
    EXPECT_TRUE(have_same_bits(result.k, empty)) << "K was written where no token of the step is";
    EXPECT_TRUE(have_same_bits(result.v, empty)) << "V was written where no token of the step is";
    trial.count(c.step.num_tokens() * (c.num_heads + 2 * c.kv_heads) * dim, worst);
  });
}

TEST_F(ModelKernels, RotaryOfATokenDependsOnNothingElse) {
  for_all_seeds(30, [](const Trial& trial) {
    const RotaryCase c = rotary_case(trial);
    const RotaryResult all = run(c);
    int64_t t = trial.pick(20, c.step.num_tokens());
    while (c.step.token_rows[size_t(t)] < 0) --t;
    RotaryCase one = c;
    one.step = c.step.alone(t);
    one.qkv = rows_of(c.qkv, {t});
    const RotaryResult alone = run(one);
    EXPECT_TRUE(have_same_bits(alone.qkv, rows_of(all.qkv, {t}))) << "q";
    const int64_t dim = c.head_dim;
    for (int64_t head = 0; head < c.kv_heads; ++head) {
      for (int64_t i = 0; i < dim; ++i) {
        const int64_t at = c.step.place_of(t) * dim + i, block = c.step.block_of(t);
        EXPECT_EQ(alone.k.get(block, head, at), all.k.get(block, head, at)) << "k";
        EXPECT_EQ(alone.v.get(block, head, at), all.v.get(block, head, at)) << "v";
      }
    }
    trial.count((c.num_heads + 2 * c.kv_heads) * dim);
  });
}

// --- launches -------------------------------------------------------------------------------

// In a graph, where no launch waits for the host: a launch that overlaps the one before reads what
// that one writes, and writes what that one reads, no earlier than its end.
TEST_F(ModelKernels, OverlappingLaunchesGiveTheSameBits) {
  for_all_seeds(Trial::size(10, 2), [](const Trial& trial) {
    const Dtype dtype = model_dtype(trial, 0);
    const int64_t tokens = 1 + trial.pick(1, Trial::size(400, 20)), size = 4096;
    const Tensor start = random_matrix(dtype, tokens, size, trial.seed(), 2);
    const Tensor gates = random_matrix(dtype, tokens, 2 * size, trial.seed() + 1, 2);
    const GuardedTensor weight(random_vector(dtype, size, trial.seed() + 2));
    const auto chain = [&](LaunchOrder order) {
      const GuardedTensor x(start), y(start), gate_up(gates), z(start);
      const CapturedGraph graph([&](cudaStream_t stream) {
        for (int i = 0; i < 8; ++i) {
          add_rms_norm({.x = x.view(), .weight = weight.view(), .y = y.view(), .eps = 1e-6},
                       z.view(), stream, order);
          silu_mul(gate_up.view(), z.view(), stream, order);  // while the norm may still read z
          rms_norm({.x = z.view(), .weight = weight.view(), .y = y.view(), .eps = 1e-6}, stream,
                   order);
          add_rms_norm({.x = z.view(), .weight = weight.view(), .y = x.view(), .eps = 1e-6},
                       y.view(), stream, order);
        }
      });
      graph.replay();
      return x.read();
    };
    EXPECT_TRUE(
        have_same_bits(chain(LaunchOrder::overlaps_previous), chain(LaunchOrder::after_previous)));
    trial.count(tokens * size);
  });
}

}  // namespace
}  // namespace loratory::gpu
