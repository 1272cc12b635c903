// Which numbers the kernels compute: P1, P3-P5, P10, P15, P17, P18, P24; skipped without a GPU.
// Exact lane: small integers, bit for bit against the reference. Bounded lane: reals, against the
// float64 oracle. Every kernel is asked in every case.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "layer_on_gpu.hpp"
#include "reference/lora/scaling.hpp"
#include "suite.hpp"
#include "tests/gpu/support/judge.hpp"
#include "tests/gpu/support/layer_statistics.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::Fill;
using reference::LayerBatch;
using reference::LayerCase;
using reference::LayerData;
using reference::LayerLimits;
using reference::LayerSlice;
using reference::Tensor;

/// Of products and sums in tensor cores.
constexpr double kUnit = 0x1p-22;

constexpr LayerLimits kLarge{.num_products = int64_t(1) << 30, .weight_bytes = int64_t(1) << 28};
constexpr LayerLimits kSmall{.num_products = int64_t(1) << 26, .weight_bytes = int64_t(1) << 23};

class LoraNumbers : public OnGpu {};

/// Each case with every kernel.
template <typename Check>
void with_every_kernel(const LayerData& data, Check check) {
  const LayerOnGpu layer(data);
  for (const KernelUnderTest& kernel : layer.kernels(data.batch)) {
    SCOPED_TRACE(kernel.name);
    check(layer.run(kernel, data.batch));
    if (testing::Test::HasFailure()) return;
  }
}

/// y of some kernel, the same one for every layer of a trial with as many; over the trials all.
Tensor run(const Trial& trial, const LayerData& data) {
  const LayerOnGpu layer(data);
  const auto kernels = layer.kernels(data.batch);
  return layer.run(kernels[size_t(trial.pick(0, int64_t(kernels.size())))], data.batch);
}

void expect_exact(const Trial& trial, const LayerData& data) {
  const Exact exact(data, data.batch);
  with_every_kernel(data, [&](const Tensor& y) {
    EXPECT_EQ(exact.first_wrong_row(y), -1) << describe(data.shape);
    trial.count(exact.num_results());
  });
}

template <typename Visit>
void for_covered(const LayerData& data, Visit visit) {
  for (int64_t t = 0; t < data.batch.num_tokens(); ++t) {
    const int32_t slot = data.batch.slots[size_t(t)];
    for (size_t i = 0; i < data.slices.size(); ++i) {
      if (!data.is_covered(slot, i)) continue;
      const auto [begin, end] = data.columns(i);
      for (int64_t n = begin; n < end; ++n) visit(t, i, n);
    }
  }
}

// P1, [1.12]: zeros give base as numbers, a -0.0 may become +0.0; without add_inputs they give 0.
TEST_F(LoraNumbers, P1ZeroWeightsOrScalingGiveBase) {
  for_all_seeds(24, [](Trial& trial) {
    LayerData data(trial.layer(kSmall));
    const int64_t what = trial.pick(1, 3);
    trial.classify(true, std::string("zero ") + (what == 0 ? "A" : what == 1 ? "B" : "scaling"));
    for (LayerSlice& slice : data.slices) {
      if (what == 0) scale_numbers(slice.a, 0);
      if (what == 1) scale_numbers(slice.b, 0);
      if (what == 2) std::ranges::fill(slice.scalings, 0.0F);
    }
    with_every_kernel(data, [&](const Tensor& y) {
      for_covered(data, [&](int64_t t, size_t, int64_t n) {
        const double base = data.shape.add_inputs ? data.batch.y.get(t, n) : 0;
        if (y.get(t, n) != base) ADD_FAILURE() << "row " << t << " column " << n;
        trial.count(1);
      });
    });
  });
}

// P3, [1.1]: powers of two commute with every rounding, so homogeneity holds bit for bit. Not in
// f16, where the low part of a split h falls below the normal range.
TEST_F(LoraNumbers, P3DeltaIsHomogeneousInPowersOfTwo) {
  for_all_seeds(24, [](Trial& trial) {
    LayerCase c = trial.layer(kSmall);
    c.add_inputs = false;
    c.fill = Fill::reals;
    c.weight = c.out = Dtype::bf16;
    const LayerData data(c);
    LayerData a = data, b = data, scaling = data;
    for (size_t i = 0; i < data.slices.size(); ++i) {
      scale_numbers(a.slices[i].a, 2);
      scale_numbers(b.slices[i].b, 2);
      for (float& s : scaling.slices[i].scalings) s *= 2;
    }
    const Tensor y = run(trial, data), doubled = run(trial, a);
    EXPECT_TRUE(have_same_bits(doubled, run(trial, b)));
    EXPECT_TRUE(have_same_bits(doubled, run(trial, scaling)));
    for_covered(data, [&](int64_t t, size_t, int64_t n) {
      const double once = y.get(t, n);
      if (doubled.get(t, n) != 2 * once) ADD_FAILURE() << "row " << t << " column " << n;
      trial.count(1);
    });
  });
}

// P3, [1.1]: sums of two B are exact on integers in f32.
TEST_F(LoraNumbers, P3DeltaIsLinearInB) {
  for_all_seeds(24, [](Trial& trial) {
    LayerCase c = trial.layer(kSmall);
    c.add_inputs = false;
    c.fill = Fill::small_integers;
    c.out = Dtype::f32;
    c.mode.h = reference::IntermediateMode::fp32;
    const LayerData first(c);
    LayerData second = first, sum = first;
    for (size_t i = 0; i < first.slices.size(); ++i) {
      Tensor &b = second.slices[i].b, &total = sum.slices[i].b;
      for (int64_t at = 0; at < num_numbers(b); ++at) {
        const double v = number(b, at);
        if (std::isnan(v)) continue;
        set_number(b, at, double(trial.pick(uint64_t(10 + at), 5) - 2));
        set_number(total, at, v + number(b, at));
      }
    }
    const Tensor y1 = run(trial, first), y2 = run(trial, second), y = run(trial, sum);
    for_covered(first, [&](int64_t t, size_t, int64_t n) {
      const bool ok = y.get(t, n) == y1.get(t, n) + y2.get(t, n);
      if (!ok) ADD_FAILURE() << "row " << t << " column " << n;
      trial.count(1);
    });
  });
}

// P4, P16, [1.1] [1.5] [1.20]: integers leave nothing to round but the result, so every order of
// summation gives the reference's bits, in every mode.
TEST_F(LoraNumbers, P4IntegersGiveTheBitsOfTheReference) {
  for_all_seeds(40, [](Trial& trial) {
    LayerCase c = trial.layer(kLarge);
    c.fill = Fill::small_integers;
    expect_exact(trial, LayerData(c));
  });
}

// P5, [1.16] [1.17] [1.18]
TEST_F(LoraNumbers, P5EveryKernelLiesWithinTheBound) {
  for_all_seeds(40, [](Trial& trial) {
    const LayerData data(trial.layer(kLarge));
    const Bounds bounds(data, data.batch, kUnit);
    trial.classify(data.shape.fill == Fill::cancellation, "cancellation");
    trial.classify(data.shape.fill == Fill::tiny, "tiny");
    with_every_kernel(data, [&](const Tensor& y) {
      const Bounds::Verdict verdict = bounds.judge(y);
      EXPECT_LE(verdict.worst, 1) << describe(data.shape) << ", row " << verdict.row << " column "
                                  << verdict.column;
      trial.count(verdict.num_results, verdict.worst);
    });
  });
}

/// A layer of the sizes that models have, where the worst-case bound has room for many faults.
LayerCase real_size(const Trial& trial) {
  constexpr int64_t kSizes[] = {2880, 4096, 4097, 8192, 11008, 14336, 28672};
  LayerCase c = trial.layer(kLarge);
  c.num_in = kSizes[trial.pick(50, Trial::size(int64_t(std::size(kSizes)), 1))];
  if (c.num_in % 8 != 0) c.aligned = false;
  c.max_loras = std::min(c.max_loras, 3);
  c.num_tokens = std::clamp<int64_t>(c.num_tokens, 1, 64);
  c.max_rank = std::min(c.max_rank, 128);
  return c;
}

// P5, [1.18]: no larger than roundings that point either way: docs/error_bounds.md.
TEST_F(LoraNumbers, P5ErrorsAreThoseOfRandomRoundings) {
  for_all_seeds(16, [](Trial& trial) {
    const LayerData data(real_size(trial));
    const std::vector<int64_t> rows = judged_rows(data, data.batch, int64_t(1) << 25);
    const LayerStatistics statistics(data, data.batch, rows, kUnit);
    with_every_kernel(data, [&](const Tensor& y) {
      const check::StatisticalVerdict verdict = statistics.judge(y);
      EXPECT_TRUE(verdict.ok) << describe(data.shape) << ": " << verdict.in_words();
      trial.classify(verdict.num_informative > 0, "informative");
      trial.count(verdict.num_elements, verdict.worst.statistic / verdict.worst.threshold);
    });
  });
}

/// Rank r as rank q and rank r - q: what `rest` has of the weights begins at row q.
void cut_rank(int64_t cut, LayerData& first, LayerData& rest) {
  for (size_t i = 0; i < first.slices.size(); ++i) {
    LayerSlice &head = first.slices[i], &tail = rest.slices[i];
    for (size_t s = 0; s < head.ranks.size(); ++s) {
      const auto slot = int64_t(s);
      const int64_t rank = head.ranks[s], kept = std::min(cut, rank);
      head.ranks[s] = int32_t(kept), tail.ranks[s] = int32_t(rank - kept);
      for (int64_t j = kept; j < rank; ++j) {
        for (int64_t k = 0; k < head.a.shape()[2]; ++k) {
          tail.a.set(head.a.get(slot, j, k), slot, j - kept, k);
        }
        for (int64_t n = 0; n < head.b.shape()[1]; ++n) {
          tail.b.set(head.b.get(slot, n, j), slot, n, j - kept);
        }
      }
    }
  }
}

// P10: one adapter as two, one after the other; integers in f32 leave nothing to round.
TEST_F(LoraNumbers, P10AnAdapterIsTheSumOfItsRanks) {
  for_all_seeds(24, [](Trial& trial) {
    LayerCase c = trial.layer({.num_products = int64_t(1) << 24, .weight_bytes = 1 << 20});
    c.add_inputs = true;
    c.fill = Fill::small_integers;
    c.out = Dtype::f32;
    c.mode.h = reference::IntermediateMode::fp32;
    const LayerData data(c);
    LayerData first = data, rest = data;
    cut_rank(trial.pick(1, c.max_rank + 1), first, rest);
    rest.batch.y = run(trial, first);
    EXPECT_TRUE(have_same_bits(run(trial, rest), run(trial, data))) << describe(c);
    trial.count(num_numbers(data.batch.y));
  });
}

/// The rows of one slice's B in each slot, as slices of their own; A, ranks and scalings repeated.
LayerData split(const LayerData& fused, const std::vector<int64_t>& num_out) {
  LayerData out = fused;
  out.shape.num_out = num_out;
  out.slices.clear();
  const LayerSlice& whole = fused.slices[0];
  int64_t first = 0;
  for (const int64_t n : num_out) {
    const reference::ConstTensorView part = whole.b.view().part(1, first, first + n);
    LayerSlice slice = whole;
    slice.b = Tensor(whole.b.dtype(), part.shape);
    for (int64_t s = 0; s < part.shape[0]; ++s) {
      for (int64_t row = 0; row < n; ++row) {
        for (int64_t j = 0; j < part.shape[2]; ++j) slice.b.set(part.get(s, row, j), s, row, j);
      }
    }
    out.slices.push_back(slice);
    first += n;
  }
  return out;
}

// P15, [1.25]: one A and a stacked B are the slices with A repeated, bit for bit.
TEST_F(LoraNumbers, P15AFusedAdapterIsItsSlices) {
  for_all_seeds(24, [](Trial& trial) {
    LayerCase c = trial.layer(kSmall);
    const std::vector<int64_t> num_out = c.num_out;
    c.num_out = {c.num_columns() - c.offset_start};
    const LayerData fused(c);
    EXPECT_TRUE(have_same_bits(run(trial, split(fused, num_out)), run(trial, fused)))
        << describe(c);
    trial.count(num_numbers(fused.batch.y));
  });
}

// P17, [1.14]: y is as exact as its dtype, the scaling is fp32 to the end: integers times any
// scaling, rounded once.
TEST_F(LoraNumbers, P17ScalingsAreNotRounded) {
  for_all_seeds(24, [](Trial& trial) {
    LayerCase c = trial.layer(kSmall);
    c.fill = Fill::small_integers;
    c.add_inputs = false;
    LayerData data(c);
    for (LayerSlice& slice : data.slices) {
      for (size_t s = 0; s < slice.scalings.size(); ++s) {
        slice.scalings[s] = 0.3F + 0x1p-20F * float(trial.pick(s, 1 << 20));
      }
    }
    expect_exact(trial, data);
  });
}

/// base + scaling · B A x^T of one element in float64, from the merged row of B A; integers: exact.
double merged(const LayerData& data, int64_t t, size_t i, int64_t n) {
  const LayerSlice& slice = data.slices[i];
  const int32_t slot = data.batch.slots[size_t(t)];
  const int64_t column = n - data.columns(i).begin;
  double sum = 0;
  for (int64_t k = 0; k < data.shape.num_in; ++k) {
    double weight = 0;
    for (int64_t j = 0; j < data.rank(slot, i); ++j) {
      weight += slice.b.get(slot, column, j) * slice.a.get(slot, j, k);
    }
    sum += slice.scalings[size_t(slot)] * weight * data.batch.x.get(t, k);
  }
  return sum + (data.shape.add_inputs ? data.batch.y.get(t, n) : 0);
}

// P18, [1.10] [1.13]: alpha / r and the merged weight; integers leave the last rounding alone.
TEST_F(LoraNumbers, P18MergedWeightsGiveTheSame) {
  for_all_seeds(24, [](Trial& trial) {
    LayerCase c = trial.layer({.num_products = int64_t(1) << 24, .weight_bytes = 1 << 20});
    c.fill = Fill::small_integers;
    c.mode = reference::kDefaultMode;
    LayerData data(c);
    for (LayerSlice& slice : data.slices) {
      for (size_t s = 0; s < slice.scalings.size(); ++s) {
        const int32_t rank = std::max(1, slice.ranks[s]);
        slice.scalings[s] = reference::lora_scaling(rank * (s % 2 == 0 ? 0.5 : -2.0), rank, false);
      }
    }
    struct Element {
      int64_t row, column;
      double expected;
    };
    std::vector<Element> some;
    const auto every = std::max<int64_t>(1, num_numbers(data.batch.y) / 40);
    for_covered(data, [&](int64_t t, size_t i, int64_t n) {
      if ((t * c.num_columns() + n) % every != 0) return;
      some.push_back({t, n, round_to(c.out, merged(data, t, i, n))});
    });
    with_every_kernel(data, [&](const Tensor& y) {
      for (const Element& e : some) {
        EXPECT_EQ(y.get(e.row, e.column), e.expected) << "row " << e.row << " column " << e.column;
      }
      trial.count(int64_t(some.size()));
    });
  });
}

// P24, [1.6]: without add_inputs y is delta alone, whatever it held; with it y accumulates.
TEST_F(LoraNumbers, P24AddInputs) {
  for_all_seeds(24, [](Trial& trial) {
    LayerCase c = trial.layer(kSmall);
    c.fill = Fill::small_integers;
    c.out = Dtype::f32;
    c.add_inputs = true;
    const LayerData sum(c);
    c.add_inputs = false;
    const LayerData alone(c);
    const Tensor y = run(trial, sum), delta = run(trial, alone);
    for_covered(sum, [&](int64_t t, size_t, int64_t n) {
      const bool ok = delta.get(t, n) == y.get(t, n) - sum.batch.y.get(t, n);
      if (!ok) ADD_FAILURE() << "row " << t << " column " << n;
      trial.count(1);
    });
  });
}

}  // namespace
}  // namespace loratory::gpu
