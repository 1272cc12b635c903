// LoRA on experts: P20, P21, P25 and P1, P4-P7, P13 for it; skipped without a GPU. Exact lane:
// small integers, bit for bit against the reference. Bounded lane: reals, against the float64
// oracle. Every kernel is asked in every case. Beyond a rank, in slots and experts of rank 0, and
// in rows of x that nothing may read: NaN.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "captured_graph.hpp"
#include "check/statistics/statistical_judge.hpp"
#include "fuzz/support/layer_case.hpp"
#include "fuzz/support/lora_case.hpp"
#include "fuzz/support/moe_case.hpp"
#include "gpu/moe/expert_groups.hpp"
#include "gpu/moe/expert_lora.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "guarded_tensor.hpp"
#include "layer_on_gpu.hpp"
#include "reference/base/input_error.hpp"
#include "reference/layout/batch_layout.hpp"
#include "reference/moe/oracle.hpp"
#include "suite.hpp"
#include "upload.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::ExpertLoraArgs;
using reference::ExpertLoraSlice;
using reference::IntermediateMode;
using reference::MoeCase;
using reference::MoeData;
using reference::MoeFill;
using reference::Tensor;

constexpr double kUnit = 0x1p-22;  // of products and sums in tensor cores

class ExpertLoraOnGpu : public OnGpu {};

/// Of the base layer, which a case has too, and of all slots.
void cut_weights(MoeCase& c, int64_t most) {
  const auto base = [&] { return int64_t(3) * c.num_experts * c.hidden * c.inner; };
  const auto lora = [&] {
    return int64_t(3) * c.max_loras * c.num_experts * c.max_rank * (c.hidden + c.inner);
  };
  while (lora() > most && c.max_loras > 1) --c.max_loras;
  while (lora() > most && c.max_rank > 8) c.max_rank /= 2;
  while ((base() > most || lora() > most) && c.hidden + c.inner > 16) {
    int& larger = c.hidden > c.inner ? c.hidden : c.inner;
    larger = std::max(8, larger / 16 * 8);
  }
}

/// A layer of experts, cut to what the reference computes in a second.
MoeCase moe_case(const Trial& trial) {
  constexpr int kSizes[] = {8, 16, 24, 64, 72, 136, 264, 520, 1024, 2056};
  constexpr int kExperts[] = {1, 2, 3, 8, 12, 32, 60, 128};
  constexpr int kRanks[] = {1, 4, 8, 16, 24, 33, 64};
  constexpr int kTokens[] = {1, 2, 3, 7, 16, 33, 64, 130, 300};
  MoeCase c{.seed = trial.seed()};
  c.hidden = kSizes[trial.pick(1, Trial::size(10, 5))];
  c.inner = kSizes[trial.pick(2, Trial::size(8, 4))];
  c.num_experts = kExperts[trial.pick(3, std::size(kExperts))];
  c.k = 1 + int(trial.pick(4, std::min(8, c.num_experts)));
  c.max_loras = 1 + int(trial.pick(5, 8));
  c.max_rank = kRanks[trial.pick(6, std::size(kRanks))];
  c.num_tokens = kTokens[trial.pick(7, std::size(kTokens))];
  c.dtype = int(trial.pick(8, 3));  // f32 by the generic kernels
  c.mode = int(trial.pick(9, 16));
  cut_weights(c, Trial::size(4'000'000, 300'000));
  if (trial.pick(10, 4) == 0) c.hidden += 3, c.inner += 5;
  const int64_t most_products = Trial::size(8'000'000, 300'000);
  const int64_t per_token = int64_t(c.k) * c.max_rank * 3 * (c.hidden + c.inner);
  c.num_tokens = int(std::clamp<int64_t>(most_products / per_token, 1, c.num_tokens));
  trial.classify(c.num_tokens == 1, "one token");
  trial.classify(c.num_tokens * c.k > 256, "more than 256 rows");
  trial.classify(c.k == 1, "k = 1");
  trial.classify(c.num_experts > 32, "more than 32 experts");
  trial.classify(c.max_rank > 32, "ranks above 32");
  trial.classify(c.hidden % 8 != 0 || c.inner % 8 != 0 || c.max_rank % 8 != 0, "unaligned");
  trial.classify(c.dtype == 0, "f32");
  trial.classify(c.dtype == 1, "f16");
  return c;
}

/// Experts elsewhere and in another order, in a third of the cases; NaN in rows of x that no kernel
/// may read.
MoeData moe_data(const Trial& trial, const MoeCase& c, MoeFill fill) {
  MoeData data(c, fill);
  if (trial.pick(11, 3) == 0) {
    data.expert_map.resize(size_t(c.num_experts));
    const auto order = reference::shuffled(c.num_experts, trial.seed());
    for (size_t e = 0; e < data.expert_map.size(); ++e) {
      data.expert_map[e] = trial.pick(100 + e, 4) == 0 ? -1 : int32_t(order[e]);
    }
    trial.classify(true, "experts elsewhere");
  }
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    if (data.active_slot(t) >= 0) continue;
    for (int64_t n = 0; n < c.hidden; ++n)
      data.x.set(std::numeric_limits<double>::quiet_NaN(), t, n);
  }
  return data;
}

/// [L, E, ...] as [L·E, ...]: the same bytes.
Tensor in_pairs(const Tensor& of) {
  Tensor out(of.dtype(), {of.shape()[0] * of.shape()[1], of.shape()[2], of.shape()[3]});
  out.bytes() = of.bytes();
  return out;
}

/// Which projection of a case: gate and up on x by token, or down on rows of its own.
struct Projection {
  bool is_down = false;
  bool is_weighted = false;  ///< by router weights
};

/// The tensors of one projection in host memory, and what the reference makes of them.
struct HostCase {
  HostCase(const MoeData& d, const Projection& p, Dtype out)
      : data(d), projection(p), x(p.is_down ? rows_of_down(d) : d.x), y(base(d, p, out)) {}

  const MoeData& data;
  Projection projection;
  Tensor x, y;

  std::vector<ExpertLoraSlice> slices() const {
    const reference::MoeLora lora = data.lora();
    return projection.is_down ? std::vector{lora.w2} : lora.w13;
  }
  ExpertLoraArgs args(Tensor& to) const {
    ExpertLoraArgs out = data.lora_args(slices(), x, to);
    if (projection.is_weighted) out.router_weights = data.router_weights;
    return out;
  }
  Tensor expected() const {
    Tensor out = y;
    const ExpertLoraArgs of = args(out);
    expert_lora(of, single_row_tiles(of.rows, of.adapters));
    return out;
  }
  int64_t first_slice() const { return projection.is_down ? int64_t(data.a.size()) - 1 : 0; }
  int64_t num_slices() const { return projection.is_down ? 1 : int64_t(data.a.size()) - 1; }

 private:
  static Tensor rows_of_down(const MoeData& d) {
    Tensor out(d.x.dtype(), {int64_t(d.experts.size()), d.c.inner});
    for (int64_t i = 0; i < num_numbers(out); ++i) {
      const uint64_t bits = reference::random_bits(d.c.seed, 77, uint64_t(i));
      set_number(out, i, double(int64_t(bits % 3)) - 1);
    }
    return out;
  }
  static Tensor base(const MoeData& d, const Projection& p, Dtype out) {
    const int64_t inner = d.c.inner * (d.gated ? 2 : 1);
    Tensor y(out, {int64_t(d.experts.size()), p.is_down ? d.c.hidden : inner});
    for (int64_t i = 0; i < num_numbers(y); ++i) {
      set_number(y, i, double(reference::random_bits(d.c.seed, 78, uint64_t(i)) % 9) - 4);
    }
    return y;
  }
};

/// One projection on the GPU.
class CaseOnGpu {
 public:
  explicit CaseOnGpu(const HostCase& host)
      : host_(host), num_tokens_(host.data.c.num_tokens), k_(host.data.c.k) {
    const MoeData& d = host.data;
    for (int64_t i = host.first_slice(); i < host.first_slice() + host.num_slices(); ++i) {
      weights_.emplace_back(in_pairs(d.a[size_t(i)]));
      weights_.emplace_back(in_pairs(d.b[size_t(i)]));
      tables_.push_back(upload(d.ranks[size_t(i)]));
      tables_.push_back(upload(d.scalings[size_t(i)]));
    }
    router_weights_ = upload(d.router_weights);
    arrays_.push_back(upload(d.experts)), arrays_.push_back(upload(d.expert_map));
    arrays_.push_back(upload(d.slots)), arrays_.push_back(upload(d.adapter_enabled));
    const size_t bytes = workspace_bytes(num_rows(), host.num_slices(), d.c.max_rank);
    workspace_ = make_device_buffer(bytes);
    if (bytes > 0) LORATORY_CUDA_CHECK(cudaMemset(workspace_.get(), 0xFF, bytes));
    split_sums_ = zeroed_buffer(split_sums_size());
    desc_ = desc();
  }

  LoraLayerDesc desc_of(LoraOp op) const { return with_op(desc_, op); }
  int64_t num_rows() const { return num_tokens_ * k_; }
  size_t split_sums_size() const {
    return split_sums_bytes(num_rows(), host_.num_slices(), host_.data.c.max_rank);
  }
  const int32_t* array(size_t i) const {
    return reinterpret_cast<const int32_t*>(arrays_[i].get());
  }
  /// Copies another routing, of as many tokens, into the arrays.
  void write(const MoeData& d) {
    const auto copy = [&](size_t i, const std::vector<int32_t>& from) {
      LORATORY_CUDA_CHECK(
          cudaMemcpy(arrays_[i].get(), from.data(), from.size() * 4, cudaMemcpyHostToDevice));
    };
    copy(0, d.experts), copy(1, d.expert_map), copy(2, d.slots), copy(3, d.adapter_enabled);
  }
  ExpertRowsView rows() const {
    return {.num_tokens = num_tokens_,
            .experts = array(0),
            .expert_map = host_.data.expert_map.empty() ? nullptr : array(1),
            .slots = array(2),
            .adapter_enabled = array(3)};
  }
  ExpertGroups groups() const {
    ExpertGroups out({.max_tokens = num_tokens_,
                      .experts_per_token = k_,
                      .num_experts = host_.data.c.num_experts,
                      .num_slots = host_.data.c.max_loras});
    out.build(rows(), nullptr);
    return out;
  }

  /// y after `launch`; fails the test if anything around y was written.
  template <typename Launch>
  Tensor run(const Launch& launch) const {
    const GuardedTensor x(host_.x), y(host_.y);
    launch(x.view(), y.view());
    LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
    EXPECT_TRUE(y.guards_are_intact()) << "written around y";
    EXPECT_TRUE(have_same_bits(x.read(), host_.x)) << "x was written";
    return y.read();
  }

 private:
  const HostCase& host_;
  int64_t num_tokens_;
  int32_t k_;
  std::vector<GuardedTensor> weights_;
  std::vector<DeviceBuffer> tables_, arrays_;
  DeviceBuffer router_weights_, workspace_, split_sums_;
  LoraLayerDesc desc_;

  LoraLayerDesc desc() const {
    const MoeData& d = host_.data;
    LoraLayerDesc out;
    out.mode = d.c.mode_value();
    for (size_t i = 0; i < weights_.size() / 2; ++i) {
      const DeviceView a = weights_[2 * i].view(), b = weights_[2 * i + 1].view();
      const ExpertSliceShape shape{.num_slots = d.c.max_loras,
                                   .num_experts = d.c.num_experts,
                                   .max_rank = d.c.max_rank,
                                   .num_in = a.shape[2],
                                   .num_out = b.shape[1]};
      out.slices.push_back(expert_slice(a.dtype, a.data, b.data, shape,
                                        reinterpret_cast<const int32_t*>(tables_[2 * i].get()),
                                        reinterpret_cast<const float*>(tables_[2 * i + 1].get())));
    }
    out.experts = {.num_experts = d.c.num_experts, .rows_per_x = host_.projection.is_down ? 1 : k_};
    if (host_.projection.is_weighted) {
      out.experts.router_weights = reinterpret_cast<const float*>(router_weights_.get());
    }
    out.workspace = workspace_.get();
    out.workspace_bytes = workspace_bytes(num_rows(), int64_t(out.slices.size()), d.c.max_rank);
    out.split_sums = split_sums_.get();
    out.split_sums_bytes = split_sums_size();
    return out;
  }
};

using Check = std::function<void(const std::string& kernel, const Tensor& y)>;

/// Calls check with y of what the rules choose, of every linear variant, and of every pair of a
/// shrink and an expand.
void with_every_kernel(const CaseOnGpu& c, const HostCase& host, const Check& check) {
  const ExpertGroups groups = c.groups();
  const ExpertLora chosen(c.desc_of(LoraOp::linear));
  check("chosen", c.run([&](const DeviceView& x, const DeviceView& y) {
    chosen.launch({.x = x, .y = y}, groups.views(), nullptr);
  }));
  const auto try_one = [&](const std::string& name, const auto& launch) {
    SCOPED_TRACE(name);
    try {
      const Tensor y = c.run(launch);
      check(name, y);
    } catch (const InputError&) {  // a variant that this layer cannot take
    }
  };
  const LoraLayer& layer = chosen.layer();
  for (const LoraVariant& v : variants_here(LoraOp::linear)) {
    if (testing::Test::HasFailure()) return;
    try_one(describe(v), [&](const DeviceView& x, const DeviceView& y) {
      layer.launch_variant(v, {.x = x, .y = y}, groups.views().of(v.segment_size()), nullptr);
    });
  }
  // An h that is stored as x has its own tensor, which the generic path computes.
  if (host.data.c.mode_value().h == IntermediateMode::store_as_x) return;
  const LoraLayer shrink(c.desc_of(LoraOp::shrink)), expand(c.desc_of(LoraOp::expand));
  Tensor nan_h(Dtype::f32, {host.num_slices(), c.num_rows(), host.data.c.max_rank});
  std::ranges::fill(nan_h.bytes(), std::byte{0xFF});
  const GuardedTensor h(nan_h);
  for (const LoraVariant& v : variants_here(LoraOp::expand)) {
    if (testing::Test::HasFailure()) return;
    try_one("halves, expand " + describe(v), [&](const DeviceView& x, const DeviceView& y) {
      const LoraVariant first = shrink.variant_for({.x = x, .h = h.view()});
      shrink.launch_variant(first, {.x = x, .h = h.view()}, groups.views().of(first.segment_size()),
                            nullptr);
      expand.launch_variant(v, {.h = h.view(), .y = y}, groups.views().of(v.segment_size()),
                            nullptr);
    });
  }
}

Projection any_projection(const Trial& trial) {
  const Projection out{.is_down = trial.pick(20, 2) == 0, .is_weighted = trial.pick(21, 3) == 0};
  trial.classify(out.is_down, "down");
  trial.classify(out.is_weighted, "router weights");
  return out;
}

Dtype any_out(const Trial& trial, const MoeCase& c) {
  return trial.pick(22, 4) == 0 ? Dtype::f32 : Dtype(c.dtype);
}

/// The first row that differs, or -1.
int64_t first_difference(const Tensor& left, const Tensor& right) {
  for (int64_t row = 0; row < left.shape()[0]; ++row) {
    if (!reference::same_row(left, row, right, row)) return row;
  }
  return -1;
}

// P4, P13, P20: every kernel gives the bits of the reference on small integers, and writes nothing
// but covered elements.
TEST_F(ExpertLoraOnGpu, P4P20IntegersAreExact) {
  for_all_seeds(40, [](Trial& trial) {
    const MoeData data = moe_data(trial, moe_case(trial), MoeFill::integers);
    const HostCase host(data, any_projection(trial), any_out(trial, data.c));
    const Tensor expected = host.expected();
    const CaseOnGpu on_gpu(host);
    with_every_kernel(on_gpu, host, [&](const std::string& kernel, const Tensor& y) {
      EXPECT_EQ(first_difference(y, expected), -1) << kernel;
      trial.count(num_numbers(y));
    });
  });
}

/// Worst error over bound; uncovered elements must have kept their bits.
double judged(const HostCase& host, const reference::Oracle& oracle,
              const reference::Arithmetic& arithmetic, const Tensor& y) {
  double worst = 0;
  for (int64_t row = 0; row < y.shape()[0]; ++row) {
    for (int64_t n = 0; n < y.shape()[1]; ++n) {
      const auto& facts = oracle.at(row, n);
      const double ratio =
          facts
              ? reference::error_over_bound(y.get(row, n), *facts, arithmetic)
              : (y.get(row, n) == host.y.get(row, n) ? 0 : std::numeric_limits<double>::infinity());
      if (!(ratio <= 1)) {
        ADD_FAILURE() << "row " << row << " column " << n << ": " << y.get(row, n)
                      << ", error / bound " << ratio;
        return ratio;
      }
      worst = std::max(worst, ratio);
    }
  }
  return worst;
}

// P5, P20: reals lie within the derived bound. Router weights count as one more rounding.
TEST_F(ExpertLoraOnGpu, P5P20RealsLieWithinTheBound) {
  for_all_seeds(30, [](Trial& trial) {
    const MoeData data = moe_data(trial, moe_case(trial), MoeFill::reals);
    const HostCase host(data, any_projection(trial), any_out(trial, data.c));
    Tensor base = host.y;
    const ExpertLoraArgs args = host.args(base);
    const reference::Oracle oracle = expert_lora_oracle(args);
    reference::Arithmetic arithmetic = arithmetic_of(args);
    arithmetic.unit = kUnit;
    if (arithmetic.mode.h == IntermediateMode::fp32) arithmetic.mode.h = IntermediateMode::split2;
    const CaseOnGpu on_gpu(host);
    with_every_kernel(on_gpu, host, [&](const std::string& kernel, const Tensor& y) {
      SCOPED_TRACE(kernel);
      trial.count(num_numbers(y), judged(host, oracle, arithmetic, y));
    });
  });
}

// P5, P20: errors are those of random roundings, whatever room the bound has.
TEST_F(ExpertLoraOnGpu, P5P20ErrorsAreThoseOfRandomRoundings) {
  for_all_seeds(20, [](Trial& trial) {
    const MoeData data = moe_data(trial, moe_case(trial), MoeFill::reals);
    const HostCase host(data, any_projection(trial), any_out(trial, data.c));
    Tensor base = host.y;
    const ExpertLoraArgs args = host.args(base);
    reference::Arithmetic arithmetic = arithmetic_of(args);
    arithmetic.unit = kUnit;
    if (arithmetic.mode.h == IntermediateMode::fp32) arithmetic.mode.h = IntermediateMode::split2;
    const reference::DeltaModels models = expert_delta_models(args, arithmetic);
    const CaseOnGpu on_gpu(host);
    with_every_kernel(on_gpu, host, [&](const std::string& kernel, const Tensor& y) {
      const auto verdict = check::judge_statistics(models, arithmetic, y.view());
      EXPECT_TRUE(verdict.ok) << kernel << ": " << verdict.in_words();
      trial.count(verdict.num_elements);
    });
  });
}

Tensor with_chosen_kernel(const HostCase& host) {
  const CaseOnGpu on_gpu(host);
  const ExpertGroups groups = on_gpu.groups();
  const ExpertLora layer(on_gpu.desc_of(LoraOp::linear));
  return on_gpu.run([&](const DeviceView& x, const DeviceView& y) {
    layer.launch({.x = x, .y = y}, groups.views(), nullptr);
  });
}

/// The tokens `tokens` of a case, as a step of their own with the same weights.
MoeData some_tokens(const MoeData& of, const std::vector<int64_t>& tokens) {
  MoeData out = of;
  out.c.num_tokens = int(tokens.size());
  out.x = Tensor(of.x.dtype(), {int64_t(tokens.size()), of.c.hidden});
  out.experts.clear(), out.slots.clear(), out.router_weights.clear();
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t t = tokens[i];
    out.slots.push_back(of.slots[size_t(t)]);
    for (int64_t j = 0; j < of.c.k; ++j) {
      out.experts.push_back(of.experts[size_t(t * of.c.k + j)]);
      out.router_weights.push_back(of.router_weights[size_t(t * of.c.k + j)]);
    }
    for (int64_t n = 0; n < of.c.hidden; ++n) out.x.set(of.x.get(t, n), int64_t(i), n);
  }
  return out;
}

// P6, P7, P11, P12: a token has the bits it has alone, in any order and beside any others; whatever
// variant the number of rows leads to.
TEST_F(ExpertLoraOnGpu, P7ATokenHasTheBitsItHasAlone) {
  for_all_seeds(24, [](Trial& trial) {
    MoeCase c = moe_case(trial);
    const MoeData data = moe_data(trial, c, MoeFill::reals);
    const Projection projection{.is_weighted = trial.pick(21, 3) == 0};
    HostCase host(data, projection, Dtype(c.dtype));
    const Tensor all = with_chosen_kernel(host);
    const auto order = reference::shuffled(c.num_tokens, trial.seed() + 1);
    for (const size_t count : {size_t(1), size_t(c.num_tokens + 1) / 2, size_t(c.num_tokens)}) {
      const std::vector<int64_t> tokens(order.begin(), order.begin() + ptrdiff_t(count));
      const MoeData part = some_tokens(data, tokens);
      HostCase other(part, projection, Dtype(c.dtype));
      for (int64_t i = 0; i < int64_t(count) * c.k; ++i) {  // the same base
        const int64_t from = tokens[size_t(i / c.k)] * c.k + i % c.k;
        for (int64_t n = 0; n < host.y.shape()[1]; ++n) other.y.set(host.y.get(from, n), i, n);
      }
      const Tensor y = with_chosen_kernel(other);
      for (int64_t i = 0; i < int64_t(count) * c.k; ++i) {
        const int64_t from = tokens[size_t(i / c.k)] * c.k + i % c.k;
        ASSERT_TRUE(reference::same_row(y, i, all, from))
            << "row " << i << " of " << count << " tokens";
      }
      trial.count(num_numbers(y));
    }
  });
}

// P21: experts that share their weights through a stride of 0 have the bits of copies.
TEST_F(ExpertLoraOnGpu, P21SharedExpertsAreCopies) {
  for_all_seeds(16, [](Trial& trial) {
    MoeCase c = moe_case(trial);
    MoeData data = moe_data(trial, c, MoeFill::reals);
    const bool shares_a = trial.pick(30, 3) != 0, shares_b = !shares_a || trial.pick(31, 2) == 0;
    std::vector<Tensor> one;  // of gate, up: A [L, R, K], B [L, N, R]
    const auto share = [&](Tensor& of, bool shared) {
      const auto& s = of.shape();
      Tensor first(of.dtype(), {s[0], s[2], s[3]});
      const size_t bytes = first.bytes().size() / size_t(s[0]);
      for (size_t slot = 0; slot < size_t(s[0]); ++slot) {
        const auto from = of.bytes().begin() + ptrdiff_t(slot * size_t(s[1]) * bytes);
        std::copy_n(from, bytes, first.bytes().begin() + ptrdiff_t(slot * bytes));
        for (int64_t e = 1; shared && e < s[1]; ++e) {
          std::copy_n(from, bytes, from + ptrdiff_t(size_t(e) * bytes));
        }
      }
      one.push_back(first);
    };
    for (size_t i = 0; i + 1 < data.a.size(); ++i) {  // all experts of expert 0's rank
      for (int s = 0; s < c.max_loras; ++s) {
        for (int e = 1; e < c.num_experts; ++e) {
          data.ranks[i][size_t(s * c.num_experts + e)] = data.ranks[i][size_t(s * c.num_experts)];
        }
      }
      share(data.a[i], shares_a), share(data.b[i], shares_b);
    }
    // What is not shared may be NaN beyond another rank: numbers will do.
    for (auto* tensors : {&data.a, &data.b}) {
      for (Tensor& t : *tensors) {
        for (int64_t i = 0; i < num_numbers(t); ++i) {
          if (std::isnan(number(t, i))) set_number(t, i, 0.5);
        }
      }
    }
    for (Tensor& t : one) {
      for (int64_t i = 0; i < num_numbers(t); ++i) {
        if (std::isnan(number(t, i))) set_number(t, i, 0.5);
      }
    }
    const HostCase host(data, {}, Dtype(c.dtype));
    const CaseOnGpu on_gpu(host);
    const ExpertGroups groups = on_gpu.groups();
    LoraLayerDesc shared = on_gpu.desc_of(LoraOp::linear);
    std::vector<GuardedTensor> kept;
    for (const Tensor& t : one) kept.emplace_back(t);
    for (size_t i = 0; i < shared.slices.size(); ++i) {
      LoraSliceDesc& slice = shared.slices[i];
      if (shares_a) slice.a = kept[2 * i].view(), slice.a_expert_stride = 0;
      if (shares_b) slice.b = kept[2 * i + 1].view(), slice.b_expert_stride = 0;
    }
    const ExpertLora copies(on_gpu.desc_of(LoraOp::linear)), through_stride(shared);
    const auto run = [&](const ExpertLora& layer) {
      return on_gpu.run([&](const DeviceView& x, const DeviceView& y) {
        layer.launch({.x = x, .y = y}, groups.views(), nullptr);
      });
    };
    EXPECT_EQ(first_difference(run(copies), run(through_stride)), -1);
    trial.count(num_numbers(host.y));
    trial.classify(shares_a && shares_b, "A and B shared");
  });
}

// [1.39] An adapter of a whole 3-D tensor, one slice whose columns alternate between gate and up as
// gpt-oss stores them, has the bits of two slices that share A.
TEST_F(ExpertLoraOnGpu, InterleavedColumnsAreTwoSlices) {
  for_all_seeds(12, [](Trial& trial) {
    MoeCase c = moe_case(trial);
    c.activation = int(reference::Activation::gpt_oss);  // gated
    MoeData data = moe_data(trial, c, MoeFill::reals);
    data.a[1] = data.a[0], data.ranks[1] = data.ranks[0], data.scalings[1] = data.scalings[0];
    for (int64_t i = 0; i < num_numbers(data.b[1]); ++i) {
      set_number(data.b[1], i, number(data.b[0], i) * (i % 2 == 0 ? -0.5 : 1));
    }
    const HostCase host(data, {}, Dtype(c.dtype));
    const Tensor halves = with_chosen_kernel(host);
    Tensor b(data.b[0].dtype(), {c.max_loras, c.num_experts, 2 * c.inner, c.max_rank});
    const int64_t row_numbers = c.max_rank, rows = num_numbers(data.b[0]) / row_numbers;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t j = 0; j < row_numbers; ++j) {
        set_number(b, 2 * row * row_numbers + j, number(data.b[0], row * row_numbers + j));
        set_number(b, (2 * row + 1) * row_numbers + j, number(data.b[1], row * row_numbers + j));
      }
    }
    MoeData fused = data;
    fused.a = {data.a[0], data.a[2]}, fused.b = {b, data.b[2]};
    fused.ranks = {data.ranks[0], data.ranks[2]};
    fused.scalings = {data.scalings[0], data.scalings[2]};
    HostCase other(fused, {}, Dtype(c.dtype));
    const auto at = [&](int64_t n) { return n < c.inner ? 2 * n : 2 * (n - c.inner) + 1; };
    for (int64_t row = 0; row < host.y.shape()[0]; ++row) {
      for (int64_t n = 0; n < 2 * c.inner; ++n) other.y.set(host.y.get(row, n), row, at(n));
    }
    const Tensor interleaved = with_chosen_kernel(other);
    for (int64_t row = 0; row < halves.shape()[0]; ++row) {
      for (int64_t n = 0; n < 2 * c.inner; ++n) {
        const double want = halves.get(row, n), got = interleaved.get(row, at(n));
        ASSERT_TRUE(want == got || (std::isnan(want) && std::isnan(got)))
            << "row " << row << " column " << n;
      }
    }
    trial.count(num_numbers(halves));
  });
}

template <typename T>
std::vector<T> read(const T* device, size_t count) {
  std::vector<T> values(count);
  LORATORY_CUDA_CHECK(cudaMemcpy(values.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost));
  return values;
}

/// The slot · E + expert of every row, by the reference's own words.
std::vector<int32_t> pairs_of(const MoeData& d) {
  const reference::ExpertRows rows{d.c.k, d.experts, d.expert_map};
  std::vector<int32_t> out;
  for (int64_t row = 0; row < rows.num_rows(); ++row) {
    const int32_t slot = d.active_slot(rows.token(row)), expert = rows.local_expert(row);
    out.push_back(slot < 0 || expert < 0 ? -1 : slot * d.c.num_experts + expert);
  }
  return out;
}

void expect_shows(const GroupViews& views, const std::vector<int32_t>& pairs, int32_t num_pairs) {
  const auto layout = reference::make_batch_layout(pairs, num_pairs);
  for (const SegmentView& view : views.of_size) {
    SegmentList expected;
    build(layout, view.segment_size, expected);
    ASSERT_EQ(read(view.num_segments, 1)[0], int32_t(expected.segments.size()));
    EXPECT_TRUE(read(view.segments, expected.segments.size()) == expected.segments);
    EXPECT_TRUE(read(view.token_indices, pairs.size()) == layout.token_indices_sorted);
  }
}

// [1.37]: groups by slot and expert, and by expert, number for number; numbers that do not exist
// are counted and in no group, as is padding.
TEST_F(ExpertLoraOnGpu, GroupsAreThoseOfTheHost) {
  for_all_seeds(40, [](Trial& trial) {
    MoeCase c = moe_case(trial);
    c.hidden = c.inner = c.max_rank = 1;
    c.num_tokens = int(trial.pick(40, Trial::size(6000, 600)));
    MoeData data = moe_data(trial, c, MoeFill::integers);
    const HostCase host(data, {}, Dtype(c.dtype));
    CaseOnGpu on_gpu(host);
    const ExpertGroups groups = on_gpu.groups();
    const std::vector<int32_t> pairs = pairs_of(data);
    expect_shows(groups.views(), pairs, c.max_loras * c.num_experts);
    EXPECT_EQ(read(groups.num_bad_entries(), 1)[0], 0);

    ExpertGroups by_expert(
        {.max_tokens = c.num_tokens + 5, .experts_per_token = c.k, .num_experts = c.num_experts});
    ExpertRowsView rows = on_gpu.rows();
    rows.slots = rows.adapter_enabled = nullptr;
    by_expert.build(rows, nullptr);
    std::vector<int32_t> experts;
    for (const int32_t e : data.experts) {
      experts.push_back(data.expert_map.empty() ? e : data.expert_map[size_t(e)]);
    }
    expect_shows(by_expert.views(), experts, c.num_experts);
    trial.count(int64_t(pairs.size()));
    if (c.num_tokens == 0) return;

    // A bad expert, and padding: -1.
    MoeData bad = data;
    const auto row = size_t(trial.pick(41, int64_t(data.experts.size())));
    bad.experts[row] = trial.pick(42, 2) == 0 ? c.num_experts : -1;
    on_gpu.write(bad);
    groups.build(on_gpu.rows(), nullptr);
    std::vector<int32_t> without = pairs;
    without[row] = -1;
    expect_shows(groups.views(), without, c.max_loras * c.num_experts);
    EXPECT_EQ(read(groups.num_bad_entries(), 1)[0], bad.experts[row] == -1 ? 0 : 1);
  });
}

// P67-P71 for experts: a graph of the groups and both projections follows any later routing.
TEST_F(ExpertLoraOnGpu, GraphsFollowTheRouting) {
  for_all_seeds(12, [](Trial& trial) {
    const MoeCase c = moe_case(trial);
    const MoeData data = moe_data(trial, c, MoeFill::reals);
    const HostCase host(data, {}, Dtype(c.dtype));
    CaseOnGpu on_gpu(host);
    const ExpertGroups groups({.max_tokens = c.num_tokens,
                               .experts_per_token = c.k,
                               .num_experts = c.num_experts,
                               .num_slots = c.max_loras});
    const ExpertLora layer(on_gpu.desc_of(LoraOp::linear));
    const GuardedTensor x(host.x);
    GuardedTensor y(host.y);
    MoeCase nobody_case = c;
    nobody_case.seed += 1;
    MoeData nobody(nobody_case, MoeFill::integers);
    std::ranges::fill(nobody.slots, -1);
    on_gpu.write(nobody);

    const CapturedGraph graph([&](cudaStream_t stream) {
      groups.build(on_gpu.rows(), stream);
      layer.launch({.x = x.view(), .y = y.view()}, groups.views(), stream);
    });
    graph.replay();
    EXPECT_TRUE(have_same_bits(y.read(), host.y)) << "rows without an adapter";
    on_gpu.write(data);
    y.write(host.y);
    graph.replay();
    EXPECT_EQ(first_difference(y.read(), with_chosen_kernel(host)), -1);
    trial.count(num_numbers(host.y));
  });
}

}  // namespace
}  // namespace loratory::gpu
