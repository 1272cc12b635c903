// lora_shrink and lora_expand on the tensor cores, each against float64 within its bound, with
// every variant that there is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gpu_case.hpp"
#include "layer_on_gpu.hpp"
#include "reference/numerics/error_bound.hpp"
#include "suite.hpp"

namespace loratory::gpu {
namespace {

using reference::Arithmetic;
using reference::DeltaFacts;
using reference::Dtype;
using reference::Fill;
using reference::IntermediateMode;
using reference::LoraData;
using reference::SumMode;
using reference::Tensor;

constexpr double kUnit = 0x1p-22;  // of tensor cores

class ShrinkExpandOnGpu : public OnGpu {};

LoraData data_of(const Trial& trial, Fill fill) {
  const uint64_t seed = trial.seed();
  const auto draw = [seed](uint64_t stream) { return reference::random_bits(seed, 55, stream); };
  constexpr int kIns[] = {1, 8, 17, 64, 100, 512, 896, 2368, 4097};
  constexpr int kRanks[] = {1, 3, 8, 12, 16, 24, 40, 48, 64, 100, 128};
  LoraData data({.seed = seed,
                 .num_tokens = int(draw(0) % 70),
                 .num_in = kIns[draw(1) % std::size(kIns)],
                 .num_slices = int(1 + draw(2) % 3),
                 .max_loras = int(1 + draw(3) % 6),
                 .max_rank = kRanks[draw(4) % std::size(kRanks)],
                 .dtype = int(1 + draw(5) % 2),
                 .mode = 0},
                fill);
  data.mode.h = seed % 3 == 0 ? IntermediateMode::cast_to_weight : IntermediateMode::fp32;
  data.mode.sum = seed / 3 % 2 == 0 ? SumMode::one_round : SumMode::two_round;
  trial.classify(data.slots.empty(), "no tokens");
  trial.classify(data.a.size() > 1, "packed");
  trial.classify(data.x.shape()[1] % 8 == 0, "aligned K");
  trial.classify(data.a[0].shape()[1] > 64, "ranks above 64");
  trial.classify(fill == Fill::cancellation, "cancellation");
  trial.classify(data.mode.h == IntermediateMode::cast_to_weight, "h cast to weight");
  trial.classify(data.mode.sum == SumMode::two_round, "two roundings");
  return data;
}

/// fp32 h of the case's sizes, all of it `value`.
Tensor filled_h(const LoraData& data, double value) {
  Tensor h(Dtype::f32, {int64_t(data.a.size()), int64_t(data.slots.size()), data.a[0].shape()[1]});
  for (int64_t i = 0; i < num_numbers(h); ++i) set_number(h, i, value);
  return h;
}

int32_t rank_of(const LoraData& data, size_t slice, int64_t t) {
  return data.slot(t) < 0 ? 0 : data.ranks[slice][size_t(data.slot(t))];
}

/// The variants of an operation that the tensors allow.
std::vector<LoraVariant> usable(LoraOp op, bool aligned) {
  std::vector<LoraVariant> out = variants_here(op);
  std::erase_if(out, [aligned](const LoraVariant& v) { return v.aligned && !aligned; });
  return out;
}

std::vector<LoraVariant> shrink_variants(const LoraData& data, const GpuCase& on_gpu) {
  const GuardedTensor h(filled_h(data, 0));
  const LoraTensors tensors{.x = on_gpu.x(), .h = h.view()};
  return usable(LoraOp::shrink, on_gpu.shrink_layer().variant_for(tensors).aligned);
}

std::vector<LoraVariant> expand_variants(const LoraData& data, const GpuCase& on_gpu) {
  const GuardedTensor h(filled_h(data, 0));
  const LoraTensors tensors{.h = h.view(), .y = on_gpu.y()};
  return usable(LoraOp::expand, on_gpu.expand_layer().variant_for(tensors).aligned);
}

void judge_h(const LoraData& data, const Tensor& h, const Trial& trial) {
  for (size_t i = 0; i < data.a.size(); ++i) {
    for (int64_t t = 0; t < h.shape()[1]; ++t) {
      for (int64_t j = 0; j < h.shape()[2]; ++j) {
        const double got = h.get(int64_t(i), t, j);
        if (j >= rank_of(data, i, t)) {
          ASSERT_TRUE(std::isnan(got)) << "slice " << i << " row " << t << " rank " << j;
          continue;
        }
        double exact = 0, sum_xa = 0;
        for (int64_t c = 0; c < data.x.shape()[1]; ++c) {
          const double term = data.x.get(t, c) * data.a[i].get(data.slot(t), j, c);
          exact += term, sum_xa += std::fabs(term);
        }
        const double bound =
            reference::shrink_error_bound(exact, sum_xa, data.x.shape()[1], Dtype::f32, kUnit);
        const double error = reference::error_over(got, exact, bound, Dtype::f32);
        trial.count(1, error);
        ASSERT_LE(error, 1) << "slice " << i << " row " << t << " rank " << j << ": " << got
                            << " for " << exact;
      }
    }
  }
}

// [1.7], [1.8], P5, P13: covered rows up to their rank; NaN stays everywhere else.
TEST_F(ShrinkExpandOnGpu, ShrinkLiesWithinItsBound) {
  for_all_seeds(60, [](Trial& trial) {
    const LoraData data = data_of(trial, trial.seed() % 5 == 4 ? Fill::cancellation : Fill::reals);
    const GpuCase on_gpu(data);
    const std::vector<LoraVariant> all = shrink_variants(data, on_gpu);
    ASSERT_FALSE(all.empty());
    const Tensor empty = filled_h(data, std::numeric_limits<double>::quiet_NaN());
    const Tensor h = on_gpu.shrink(all[0], empty);
    judge_h(data, h, trial);
    if (testing::Test::HasFatalFailure()) return;
    for (const LoraVariant& v : all) ASSERT_TRUE(same_bits(on_gpu.shrink(v, empty), h));
  });
}

/// One element of an expand of h, nothing for an element that is not covered.
DeltaFacts facts_of(const LoraData& data, const Tensor& h, size_t slice, int64_t t, int64_t n,
                    double base) {
  const int64_t slot = data.slot(t);
  DeltaFacts f{.base = base,
               .scaling = data.scalings[slice][size_t(slot)],
               .num_in = 0,
               .rank = rank_of(data, slice, t)};
  for (int64_t j = 0; j < f.rank; ++j) {
    const double b = data.b[slice].get(slot, n, j), h_j = h.get(int64_t(slice), t, j);
    f.delta += f.scaling * b * h_j;
    f.sum_b_h += std::fabs(b * h_j);
    f.sum_b += std::fabs(b);
    f.sum_h += std::fabs(h_j);
  }
  f.sum_b_xa = f.sum_b_h, f.sum_xa = f.sum_h;
  return f;
}

void judge_y(const LoraData& data, const Tensor& h, const Tensor& y, const Trial& trial) {
  Arithmetic arithmetic{.mode = data.mode,
                        .h = Dtype::f32,
                        .weight = data.b[0].dtype(),
                        .out = y.dtype(),
                        .unit = kUnit};
  if (data.mode.h == IntermediateMode::fp32) arithmetic.mode.h = IntermediateMode::split2;
  int64_t first = 0;
  for (size_t i = 0; i < data.b.size(); ++i) {
    for (int64_t t = 0; t < y.shape()[0]; ++t) {
      for (int64_t n = 0; n < data.num_out[i]; ++n) {
        const double got = y.get(t, first + n), base = data.y.get(t, first + n);
        if (rank_of(data, i, t) == 0) {
          ASSERT_EQ(got, base) << "row " << t << " column " << first + n;
          continue;
        }
        const DeltaFacts facts = facts_of(data, h, i, t, n, base);
        const double error = reference::error_over_bound(got, facts, arithmetic);
        trial.count(1, error);
        ASSERT_LE(error, 1) << "row " << t << " column " << first + n << ": " << got << " for "
                            << facts.result();
      }
    }
    first += data.num_out[i];
  }
}

/// Random numbers below the ranks, NaN elsewhere.
Tensor random_h(const LoraData& data, uint64_t seed) {
  Tensor h = filled_h(data, std::numeric_limits<double>::quiet_NaN());
  for (size_t i = 0; i < data.a.size(); ++i) {
    for (int64_t t = 0; t < h.shape()[1]; ++t) {
      for (int64_t j = 0; j < rank_of(data, i, t); ++j) {
        const auto bits = reference::random_bits(seed, uint64_t(t), i * 1000 + uint64_t(j));
        h.set(double(bits % 100003) / 50000.0 - 1, int64_t(i), t, j);
      }
    }
  }
  return h;
}

// [1.1]-[1.8], P5, P13: NaN in rows of base tokens and beyond the ranks of h.
TEST_F(ShrinkExpandOnGpu, ExpandLiesWithinItsBound) {
  for_all_seeds(60, [](Trial& trial) {
    const LoraData data = data_of(trial, Fill::reals);
    const GpuCase on_gpu(data);
    const Tensor h = random_h(data, trial.seed());
    const std::vector<LoraVariant> all = expand_variants(data, on_gpu);
    ASSERT_FALSE(all.empty());
    for (const LoraVariant& v : all) {
      judge_y(data, h, on_gpu.expand(v, h), trial);
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

// [1.19], P7, P11, P12: every variant and every list of segments that it takes gives the same bits,
// and the halves those of the whole.
TEST_F(ShrinkExpandOnGpu, ShrinkThenExpandIsLinear) {
  for_all_seeds(60, [](Trial& trial) {
    const LoraData data = data_of(trial, Fill::reals);
    const GpuCase on_gpu(data);
    const std::vector<LoraVariant> down = shrink_variants(data, on_gpu);
    const std::vector<LoraVariant> up = expand_variants(data, on_gpu);
    ASSERT_FALSE(down.empty() || up.empty());
    const Tensor h = on_gpu.shrink(down[0], filled_h(data, 7));
    for (const LoraVariant& v : down) {
      ASSERT_TRUE(same_bits(on_gpu.shrink(v, filled_h(data, 7)), h));
    }
    const Tensor y = on_gpu.run(variants(on_gpu.can_be_aligned())[0]);
    for (const LoraVariant& v : up) {
      for (const int32_t parts : {1, 3, 8}) {
        ASSERT_TRUE(same_bits(on_gpu.expand(v, h, parts), y)) << describe(v) << ", " << parts;
        trial.count(num_numbers(y));
      }
    }
  });
}

}  // namespace
}  // namespace loratory::gpu
