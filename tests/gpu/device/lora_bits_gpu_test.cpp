// What the bits of a row may depend on: its x, its adapter and the layer. P2, P6-P9, P11-P14, P16;
// skipped without a GPU. All bit for bit, on reals.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "gpu/runtime/device_ability.hpp"
#include "layer_on_gpu.hpp"
#include "suite.hpp"

namespace loratory::gpu {
namespace {

using reference::LayerBatch;
using reference::LayerCase;
using reference::LayerData;
using reference::LayerLimits;
using reference::LayerSlice;
using reference::Tensor;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr LayerLimits kMiddle{.num_products = int64_t(1) << 29, .weight_bytes = int64_t(1) << 26};
constexpr LayerLimits kSmall{.num_products = int64_t(1) << 27, .weight_bytes = int64_t(1) << 23};

class LoraBits : public OnGpu {};

/// A case on the GPU and its bits, as the first kernel gives them.
struct Expected {
  Expected(const Trial& trial, const LayerLimits& limits)
      : data(trial.layer(limits)),
        layer(data),
        kernels(layer.kernels(data.batch)),
        y(layer.run(kernels[0], data.batch)) {}
  /// Different ones for different `index`; over the cases all of them.
  const KernelUnderTest& any_kernel(const Trial& trial, uint64_t index) const {
    return kernels[size_t(trial.pick(1000 + index, int64_t(kernels.size())))];
  }

  LayerData data;
  LayerOnGpu layer;
  std::vector<KernelUnderTest> kernels;
  Tensor y;
};

void expect_rows(const Tensor& got, const Tensor& expected, const std::vector<int64_t>& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (same_row(got, int64_t(i), expected, rows[i])) continue;
    ADD_FAILURE() << "row " << i << " of the part, " << rows[i] << " of the batch";
    return;
  }
}

// P2, P13, P16, [1.2]-[1.8]: y holds anything at all where it is not covered, x NaN in rows of base
// tokens, weights NaN beyond ranks, between rows and in slots without tokens. LayerOnGpu::run()
// compares the bits of what may not be written, here all that was is finite.
TEST_F(LoraBits, P2P16OnlyCoveredElementsAreWritten) {
  for_all_seeds(14, [](Trial& trial) {
    const Expected e(trial, kMiddle);
    for (const KernelUnderTest& kernel : e.kernels) {
      const Tensor y = e.layer.run(kernel, e.data.batch);
      for (int64_t t = 0; t < e.data.batch.num_tokens(); ++t) {
        for (size_t i = 0; i < e.data.slices.size(); ++i) {
          if (!e.data.is_covered(e.data.batch.slots[size_t(t)], i)) continue;
          const auto [begin, end] = e.data.columns(i);
          for (int64_t n = begin; n < end; ++n) {
            if (!std::isfinite(y.get(t, n))) ADD_FAILURE() << "row " << t << " column " << n;
          }
        }
      }
      trial.count(num_numbers(y));
      if (testing::Test::HasFailure()) return;
    }
  });
}

// P6, [1.19]
TEST_F(LoraBits, P6PermutingTokensPermutesRows) {
  for_all_seeds(40, [](Trial& trial) {
    const Expected e(trial, kMiddle);
    const auto order = reference::shuffled(e.data.batch.num_tokens(), trial.seed());
    const LayerBatch moved = rows_of(e.data.batch, order);
    for (uint64_t i = 0; i < 3; ++i) {
      expect_rows(e.layer.run(e.any_kernel(trial, i), moved), e.y, order);
      trial.count(num_numbers(e.y));
    }
  });
}

// P7, P11, [1.19]: a row alone, some rows, and any cut into consecutive parts.
TEST_F(LoraBits, P7P11RowsDoNotDependOnTheirBatch) {
  for_all_seeds(40, [](Trial& trial) {
    const Expected e(trial, kMiddle);
    const int64_t num_tokens = e.data.batch.num_tokens();
    for (uint64_t i = 0; i < 4 && num_tokens > 0; ++i) {
      const std::vector<int64_t> alone{trial.pick(i, num_tokens)};
      const auto part = rows_of(e.data.batch, alone);
      expect_rows(e.layer.run(e.any_kernel(trial, i), part), e.y, alone);
    }
    uint64_t index = 100;
    for (int64_t begin = 0, end = 0; begin < num_tokens; begin = end, ++index) {
      end = std::min(num_tokens, begin + 1 + trial.pick(index, num_tokens));
      std::vector<int64_t> rows;
      for (int64_t t = begin; t < end; ++t) rows.push_back(t);
      const auto part = rows_of(e.data.batch, rows);
      expect_rows(e.layer.run(e.any_kernel(trial, index), part), e.y, rows);
    }
    trial.count(num_numbers(e.y));
  });
}

// P8, [1.19]
TEST_F(LoraBits, P8SlotNumbersDoNotMatter) {
  for_all_seeds(40, [](Trial& trial) {
    const Expected e(trial, kSmall);
    LayerData moved = e.data;
    const auto to = reference::shuffled(e.data.shape.max_loras, trial.seed());
    for (int32_t& slot : moved.batch.slots) slot = slot < 0 ? slot : int32_t(to[size_t(slot)]);
    moved.move_slots(to);
    const LayerOnGpu layer(moved);
    const auto kernels = layer.kernels(moved.batch);
    const KernelUnderTest& kernel = kernels[size_t(trial.pick(1, int64_t(kernels.size())))];
    EXPECT_TRUE(have_same_bits(layer.run(kernel, moved.batch), e.y));
    trial.count(num_numbers(e.y));
  });
}

/// The same numbers in a buffer of more rows or columns; NaN beyond.
Tensor in_wider_buffer(const Tensor& from, int64_t rows, int64_t columns) {
  Tensor out(from.dtype(), {from.shape()[0], rows, columns});
  std::ranges::fill(out.bytes(), std::byte{0xFF});
  const size_t size = size_bytes(from.dtype());
  for (int64_t s = 0; s < from.shape()[0]; ++s) {
    for (int64_t j = 0; j < from.shape()[1]; ++j) {
      const std::byte* const row = from.view().address(s, j, 0);
      std::copy_n(row, size_t(from.shape()[2]) * size, out.view().address(s, j, 0));
    }
  }
  return out;
}

// P9, [1.8] [1.11] [1.26]: rows of a slot's buffer: 2R, and 64 or more. A buffer of a rank that is
// a multiple of 8 has other kernels than one that is not: those of both give the same bits.
TEST_F(LoraBits, P9TheRankOfTheBufferDoesNotMatter) {
  for_all_seeds(40, [](Trial& trial) {
    const Expected e(trial, kSmall);
    const int64_t rank = e.data.shape.max_rank;
    for (const int64_t rows : {std::min<int64_t>(2 * rank, 512), std::max<int64_t>(rank, 64)}) {
      LayerData wide = e.data;
      for (LayerSlice& slice : wide.slices) {
        slice.a = in_wider_buffer(slice.a, rows, slice.a.shape()[2]);
        slice.b = in_wider_buffer(slice.b, slice.b.shape()[1], rows);
      }
      const LayerOnGpu layer(wide);
      const auto kernels = layer.kernels(wide.batch);
      const KernelUnderTest& kernel = kernels[size_t(trial.pick(1, int64_t(kernels.size())))];
      EXPECT_TRUE(have_same_bits(layer.run(kernel, wide.batch), e.y)) << kernel.name;
      trial.count(num_numbers(e.y));
    }
  });
}

// P11, P12, [1.19] [2.21]: every kernel; segments of any size, in any order, of tokens in any
// order.
TEST_F(LoraBits, P11P12EveryKernelAndEverySegmentGiveTheSameBits) {
  for_all_seeds(20, [](Trial& trial) {
    const Expected e(trial, kMiddle);
    for (const KernelUnderTest& kernel : e.kernels) {
      const Cut cut = random_cut(e.data.batch.slots, kernel.segment_size, trial.seed());
      EXPECT_TRUE(have_same_bits(e.layer.run(kernel, e.data.batch), e.y)) << kernel.name;
      EXPECT_TRUE(have_same_bits(e.layer.run(kernel, e.data.batch, cut), e.y)) << kernel.name;
      EXPECT_TRUE(have_same_bits(e.layer.run(kernel, e.data.batch, SegmentsFrom::device), e.y))
          << kernel.name;
      trial.count(3 * num_numbers(e.y));
      if (testing::Test::HasFailure()) return;
    }
  });
}

/// A segment for each token, of ranks of many blocks, of which some slots have none or few; every
/// kernel of the dtypes can compute it.
LayerData one_token_a_slot(const Trial& trial, int64_t num_tokens, int64_t max_rank, int64_t num_in,
                           int64_t num_columns) {
  LayerCase c = trial.layer(kSmall);
  c.num_tokens = c.max_loras = int32_t(num_tokens);
  c.mapping = reference::Mapping::distinct;
  c.num_in = num_in;
  c.num_out = {num_columns, 40, 8};
  c.min_rank = 0;
  c.max_rank = int32_t(max_rank);
  c.offset_start = 0;
  c.aligned = true;
  c.mode.h = reference::IntermediateMode::split2;
  c.out = trial.pick(1, 4) == 0 ? reference::Dtype::f32 : c.weight;
  return LayerData(c);
}

// P11, P12, [1.19]: more segments than clusters, so that a cluster goes on from the middle of one
// to the next (not so in the reduced set); columns of many waves.
TEST_F(LoraBits, P11P12SharesOfAClusterCrossSegments) {
  for_all_seeds(2, [](Trial& trial) {
    const auto num_tokens = Trial::size(100, 4);
    const auto data = one_token_a_slot(trial, num_tokens, 72, 40, Trial::size(4160, 96));
    const LayerOnGpu layer(data);
    const auto kernels = layer.kernels(data.batch);
    const Tensor y = layer.run(kernels[0], data.batch);
    for (const KernelUnderTest& kernel : kernels) {
      EXPECT_TRUE(have_same_bits(layer.run(kernel, data.batch), y)) << kernel.name;
      trial.count(num_numbers(y));
    }
    for (uint64_t i = 0; i < 5; ++i) {
      const std::vector<int64_t> alone{trial.pick(i, num_tokens)};
      const auto& kernel = kernels[size_t(trial.pick(100 + i, int64_t(kernels.size())))];
      expect_rows(layer.run(kernel, rows_of(data.batch, alone)), y, alone);
    }
  });
}

/// The layer's own kernels, which have every shrink, and of the pairs one of each expand.
std::vector<KernelUnderTest> few_of(const std::vector<KernelUnderTest>& kernels) {
  std::vector<KernelUnderTest> out;
  std::set<std::string> expands;
  for (const KernelUnderTest& kernel : kernels) {
    const bool is_new = kernel.expand.empty() || expands.insert(kernel.expand).second;
    if (is_new) out.push_back(kernel);
  }
  return out;
}

/// Every fourth kernel, so that processes share what takes long under racecheck.
class LoraBitsOfAQuarter : public LoraBits, public testing::WithParamInterface<size_t> {};
INSTANTIATE_TEST_SUITE_P(Kernels, LoraBitsOfAQuarter, testing::Range(size_t(0), size_t(4)));

// P11, P12, [1.19]: a grid sized for one segment leads every cluster through all of them, so that
// its pipelines and buffers are reused: where races would be, small enough for racecheck.
TEST_P(LoraBitsOfAQuarter, P11P12OneClusterGoesThroughManySegments) {
  for_all_seeds(4, [](Trial& trial) {
    const auto data = one_token_a_slot(trial, Trial::size(40, 5), Trial::size(72, 40), 2408,
                                       Trial::size(520, 96));
    const LayerOnGpu layer(data);
    const auto kernels = few_of(layer.kernels(data.batch));
    const Tensor y = layer.run(kernels[0], data.batch);
    for (size_t i = GetParam(); i < kernels.size(); i += 4) {
      const Tensor got = layer.run_on_few_clusters(kernels[i], data.batch);
      EXPECT_TRUE(have_same_bits(got, y)) << kernels[i].name;
      trial.count(num_numbers(y));
    }
  });
}

LaunchShape random_shape(LoraOp op, uint64_t seed) {
  const auto draw = [seed](uint64_t stream) { return reference::random_bits(seed, 98, stream); };
  constexpr int64_t kTokens[] = {1, 8, 9, 32, 33, 64, 65, 256, 257, 512, 513, 2048, 2049, 8192};
  constexpr int64_t kRanks[] = {1, 8, 16, 17, 32, 64, 128, 512};
  constexpr int64_t kWidths[] = {64, 8192, 12288, 16384, 28672};
  const int64_t max_rank = kRanks[draw(1) % std::size(kRanks)], num_slices = 1 + draw(2) % 8;
  return {.op = op,
          .num_tokens = kTokens[draw(0) % std::size(kTokens)],
          .num_in = kWidths[draw(3) % std::size(kWidths)],
          .max_rank = max_rank,
          .num_slices = num_slices,
          .num_slots = int64_t(1) << draw(7) % 11,
          .num_rank_blocks = (num_slices * ((max_rank + 15) / 16) + 3) / 4,
          .has_workspace = draw(5) % 4 != 0,
          .aligned = draw(6) % 4 != 0,
          .has_clusters = has_clusters(),
          .has_wgmma = has_wgmma()};
}

/// Once each in what there is: what is chosen for any launch, and for the second of two.
void expect_chosen_have_kernels(LoraOp op) {
  const std::vector<LoraVariant> all = variants_here(op);
  const std::vector<LoraVariant> expands = variants_here(LoraOp::expand);
  for (uint64_t i = 0; i < 10'000; ++i) {
    const LaunchShape shape = random_shape(op, i);
    const LoraVariant chosen = choose_variant(shape);
    ASSERT_EQ(std::ranges::count(all, chosen), 1) << "shape " << i << ", " << describe(chosen);
    for (const int token_tiles : {1, 4, 8}) {
      const LoraVariant second = choose_expand_variant(shape, token_tiles);
      ASSERT_EQ(std::ranges::count(expands, second), 1)
          << "shape " << i << ", " << describe(second);
    }
  }
}

// P12: what the rules choose has a kernel, for every operation, number of tokens and rank.
TEST_F(LoraBits, P12TheRulesHaveTheirKernels) {
  for (const LoraOp op : {LoraOp::linear, LoraOp::shrink, LoraOp::expand}) {
    SCOPED_TRACE(name(op));
    expect_chosen_have_kernels(op);
  }
}

// P13, [1.21]: NaN in one row of x, or in one adapter, shows in no other row.
TEST_F(LoraBits, P13NanStaysInItsRowOrSlot) {
  for_all_seeds(40, [](Trial& trial) {
    const Expected e(trial, kSmall);
    const int64_t num_tokens = e.data.batch.num_tokens();
    if (num_tokens == 0) return;
    LayerBatch bad_row = e.data.batch;
    const int64_t row = trial.pick(1, num_tokens);
    const int32_t slot = e.data.batch.slots[size_t(trial.pick(2, num_tokens))];
    bad_row.x.set(kNan, row, trial.pick(3, e.data.shape.num_in));
    LayerData bad_slot = e.data;
    if (slot >= 0) {
      bad_slot.slices[0].a.set(kNan, slot, 0, trial.pick(4, e.data.shape.num_in));
      bad_slot.slices.back().b.set(kNan, slot, 0, 0);
    }
    const LayerOnGpu bad_layer(bad_slot);
    for (const KernelUnderTest& kernel : e.kernels) {
      const Tensor by_row = e.layer.run(kernel, bad_row);
      for (int64_t t = 0; t < num_tokens; ++t) {
        EXPECT_TRUE(t == row || same_row(by_row, t, e.y, t)) << "row " << t << " of " << row;
      }
    }
    for (const KernelUnderTest& kernel : bad_layer.kernels(e.data.batch)) {
      const Tensor by_slot = bad_layer.run(kernel, e.data.batch);
      for (int64_t t = 0; t < num_tokens; ++t) {
        const bool may_change = slot >= 0 && e.data.batch.slots[size_t(t)] == slot;
        EXPECT_TRUE(may_change || same_row(by_slot, t, e.y, t)) << "row " << t;
      }
    }
    trial.count(num_numbers(e.y));
  });
}

/// The covered columns of slice `i` meet `check`; all others have the same bits.
template <typename Check>
void expect_outside(const Expected& e, const Tensor& y, size_t i, Check check) {
  const auto [begin, end] = e.data.columns(i);
  for (int64_t t = 0; t < e.data.batch.num_tokens(); ++t) {
    const bool covered = e.data.is_covered(e.data.batch.slots[size_t(t)], i);
    const int64_t first = covered ? begin : 0, last = covered ? end : 0;
    const auto same = [&, size = int64_t(size_bytes(y.dtype()))](int64_t from, int64_t to) {
      const std::byte* const got = y.view().address(t, 0) + from * size;
      return std::memcmp(got, e.y.view().address(t, 0) + from * size, size_t((to - from) * size)) ==
             0;
    };
    bool ok = same(0, first) && same(last, y.shape()[1]);
    for (int64_t n = first; n < last; ++n) ok = ok && check(t, n);
    if (ok) continue;
    ADD_FAILURE() << "row " << t;
    return;
  }
}

// P13, P14, [1.4] [1.6]: NaN in a slice, or no slice at all, changes its own columns only.
TEST_F(LoraBits, P14ASliceChangesItsOwnColumnsOnly) {
  for_all_seeds(10, [](Trial& trial) {
    const Expected e(trial, kSmall);
    const auto i = size_t(trial.pick(1, int64_t(e.data.slices.size())));
    LayerData bad = e.data, without = e.data;
    std::ranges::fill(bad.slices[i].a.bytes(), std::byte{0xFF});
    std::ranges::fill(without.slices[i].ranks, 0);
    const LayerOnGpu bad_layer(bad), layer(without);
    for (const KernelUnderTest& kernel : bad_layer.kernels(e.data.batch)) {
      const Tensor y = bad_layer.run(kernel, e.data.batch);
      expect_outside(e, y, i, [&](int64_t t, int64_t n) { return std::isnan(y.get(t, n)); });
    }
    for (const KernelUnderTest& kernel : layer.kernels(e.data.batch)) {
      const Tensor y = layer.run(kernel, e.data.batch);
      expect_outside(e, y, i, [](int64_t, int64_t) { return true; });
    }
    trial.count(num_numbers(e.y));
  });
}

// [1.19]: one hundred launches, the same bits.
TEST_F(LoraBits, HundredRepeatsGiveTheSameBits) {
  for_all_seeds(6, [](Trial& trial) {
    const Expected e(trial, kSmall);
    for (uint64_t i = 0; i < 100; ++i) {
      const KernelUnderTest& kernel = e.kernels[i % e.kernels.size()];
      EXPECT_TRUE(have_same_bits(e.layer.run(kernel, e.data.batch), e.y)) << "run " << i;
      if (testing::Test::HasFailure()) return;
    }
    trial.count(100 * num_numbers(e.y));
  });
}

}  // namespace
}  // namespace loratory::gpu
