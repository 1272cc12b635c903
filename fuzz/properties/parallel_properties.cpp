// Tensor parallelism: P15 under it, P26, P27, P28.
// Exact lane: integers, every partial sum exact, compared bit for bit with one process. Where a
// cut only shares out rows of W and B, reals keep every bit too. Bounded lane: row-parallel layers.
// Buffers of h are NaN before every step, what lies beyond the ranks is zero in the buffers of the
// tp_ranks and NaN in those of the one process.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "fuzz/support/lora_case.hpp"
#include "fuzz/support/parallel_case.hpp"
#include "fuzz/support/seeded_case.hpp"
#include "reference/base/input_error.hpp"
#include "reference/layout/batch_layout.hpp"
#include "reference/lora/oracle.hpp"
#include "reference/parallel/vocab_layers.hpp"

namespace loratory::reference {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int kMaxTokens = 9;

std::vector<LocalBuffers> make_buffers(const LayerShards& layer,
                                       const std::vector<LoraPairs>& adapters, Dtype dtype) {
  std::vector<LocalBuffers> buffers;
  for (int64_t p = 0; p < layer.tp_size(); ++p) {
    buffers.emplace_back(layer, p, int64_t(adapters.size()), dtype);
    for (size_t s = 0; s < adapters.size(); ++s) {
      buffers.back().write_slot(int32_t(s), slice_pairs(layer, p, adapters[s], dtype));
    }
  }
  return buffers;
}

// x of every tp_rank: whole, or cut along K.
std::vector<Tensor> inputs(const ParallelCase& c) {
  if (c.kind == LayerKind::row && c.input_is_parallel) return split(c.x, c.parallel.tp_size, 1);
  return std::vector<Tensor>(size_t(c.parallel.tp_size), c.x);
}

LayerInput layer_input(const ParallelCase& c, const std::vector<LocalBuffers>& buffers) {
  LayerInput in{.x = inputs(c),
                .slots = c.slots,
                .weight = c.weight.view(),
                .bias = std::nullopt,
                .buffers = buffers,
                .mode = c.mode,
                .out = c.dtype,
                .h_before = kNan};
  if (c.has_bias) in.bias = c.bias.view();
  return in;
}

RowLayer row_layer(const ParallelCase& c) {
  return {.shards = c.shards(),
          .input_is_parallel = c.input_is_parallel,
          .output = c.row_output,
          .rounding = c.rounding};
}

// What the layer gives on its tp_ranks with these adapters.
std::vector<Tensor> run_layer(const ParallelCase& c, const std::vector<LoraPairs>& adapters) {
  const LayerShards shards = c.shards();
  const auto buffers = make_buffers(shards, adapters, c.dtype);
  const LayerInput in = layer_input(c, buffers);
  switch (c.kind) {
    case LayerKind::row:
      return row_layer(c).run(in);
    case LayerKind::replicated:
      return ReplicatedLayer{shards}.run(in);
    default:
      return ColumnLayer(shards, c.gather_output).run(in);
  }
}

Tensor columns_of(const Tensor& y, const std::vector<Range>& ranges) {
  std::vector<Tensor> parts;
  for (const Range& range : ranges) {
    parts.emplace_back(y.dtype(), Extents{y.shape()[0], range.count});
    for (int64_t t = 0; t < y.shape()[0]; ++t) {
      for (int64_t n = 0; n < range.count; ++n) {
        parts.back().set(y.get(t, range.begin + n), t, n);
      }
    }
  }
  return all_gather(parts, 1)[0];
}

// The columns of y that a tp_rank of a column-parallel layer has, output by output: part p of it,
// or the head of k and v that it shares with others.
std::vector<Range> columns_here(const ParallelCase& c, int64_t p) {
  const int64_t tp_size = c.parallel.tp_size;
  std::vector<Range> columns;
  int64_t offset = 0;
  for (size_t j = 0; j < c.output_sizes.size(); ++j) {
    const bool shares_head = c.qkv.num_kv_heads > 0 && j > 0 && tp_size > c.qkv.num_kv_heads;
    if (shares_head) {
      const int64_t head = p * c.qkv.num_kv_heads / tp_size;
      columns.push_back({offset + head * c.qkv.head_dim, c.qkv.head_dim});
    } else {
      const int64_t count = c.output_sizes[j] / tp_size;
      columns.push_back({offset + p * count, count});
    }
    offset += c.output_sizes[j];
  }
  return columns;
}

// What each tp_rank should hold if the whole result is `whole`. Partial results are summed first.
bool holds(const ParallelCase& c, std::vector<Tensor> got, const Tensor& whole) {
  if (c.kind == LayerKind::row && c.row_output == RowOutput::partial) got = all_reduce(got);
  if (c.kind == LayerKind::row && c.row_output == RowOutput::scattered) got = all_gather(got, 0);
  const bool all_of_it =
      c.kind == LayerKind::row || c.kind == LayerKind::replicated || c.gather_output;
  for (size_t p = 0; p < got.size(); ++p) {
    const Tensor expected = all_of_it ? whole : columns_of(whole, columns_here(c, int64_t(p)));
    if (!same_bits(got[p], expected)) return false;
  }
  return int64_t(got.size()) == c.parallel.tp_size;
}

bool has_missing_slice(const ParallelCase& c) {
  return std::any_of(c.ranks.begin(), c.ranks.end(), [](const std::vector<int64_t>& ranks) {
    const auto missing = std::count(ranks.begin(), ranks.end(), 0);
    return missing > 0 && missing < int64_t(ranks.size());
  });
}

void classify(const ParallelCase& c) {
  RC_LOG() << c << '\n';
  RC_TAG(fmt::format("{} P={}{}", name(c.kind), c.parallel.tp_size,
                     c.parallel.fully_sharded ? " fully sharded" : ""));
  RC_CLASSIFY(has_missing_slice(c), "missing slices");
  RC_CLASSIFY(c.qkv.num_kv_heads > 0 && c.qkv.num_kv_heads < c.parallel.tp_size, "kv replicated");
}

// [3.20] [3.1]-[3.13] P26: every kind, mode and P, mixed slots, ranks 1, 3 and R, absent slices:
// the same bits as one process.
RC_GTEST_PROP(Parallel, P26IntegersGiveTheResultOfOneProcess, ()) {
  const auto seeded = sim::any_seeded_case(kMaxTokens);
  const ParallelCase c(seeded.seed, seeded.num_ops, ParallelFill::integers);
  classify(c);
  RC_ASSERT(holds(c, run_layer(c, c.adapters()), c.whole_result()));
}

// [3.1]-[3.8] [3.13] P26: rows of W and B are computed as on one process, h too (fully sharded: on
// one tp_rank each), so reals keep every bit in every numeric mode.
RC_GTEST_PROP(Parallel, P26OnlyRowParallelLayersRoundAnew, ()) {
  const auto seeded = sim::any_seeded_case(kMaxTokens);
  const ParallelCase c(seeded.seed, seeded.num_ops, ParallelFill::reals);
  RC_PRE(c.kind != LayerKind::row);
  classify(c);
  RC_ASSERT(holds(c, run_layer(c, c.adapters()), c.whole_result()));
}

// [1.2] [1.3] P26: rows of base tokens, and columns of slices their slot lacks, are what the layer
// without adapters gives on as many tp_ranks, bit for bit.
RC_GTEST_PROP(Parallel, P26UncoveredElementsAreThoseOfTheBaseLayer, ()) {
  const auto seeded = sim::any_seeded_case(kMaxTokens);
  ParallelCase c(seeded.seed, seeded.num_ops, ParallelFill::reals);
  if (c.row_output == RowOutput::scattered) c.row_output = RowOutput::reduced;
  classify(c);
  const std::vector<LoraPairs> none(c.ranks.size(), LoraPairs(c.num_out.size(), std::nullopt));
  const auto y = run_layer(c, c.adapters()), base = run_layer(c, none);
  int64_t num_uncovered = 0;
  const LayerShards shards = c.shards();
  for (size_t p = 0; p < y.size(); ++p) {
    int64_t begin = 0;
    for (size_t i = 0; i < c.num_out.size(); ++i) {
      const bool whole = c.kind == LayerKind::row || c.gather_output;
      const int64_t count = whole ? y[p].shape()[1] : shards.shards[p][i].num_b_rows();
      for (size_t t = 0; t < c.slots.size(); ++t) {
        const int32_t slot = c.slots[t];
        if (slot != kBaseSlot && c.ranks[size_t(slot)][i] > 0) continue;
        for (int64_t n = begin; n < begin + count; ++n, ++num_uncovered) {
          const double got = y[p].get(int64_t(t), n), expected = base[p].get(int64_t(t), n);
          RC_ASSERT(got == expected);
          RC_ASSERT(std::signbit(got) == std::signbit(expected));
        }
      }
      begin += count;
    }
  }
  RC_CLASSIFY(num_uncovered > 0, "some uncovered");
}

// ---- Row-parallel layers on reals: the bound of [1.18] with its terms for tp_ranks. ----

// One tp_rank's share of a row-parallel layer, as views cut by hand.
struct RowPart {
  RowPart(const ParallelCase& c, int64_t p) {
    const int64_t count = c.num_in / c.parallel.tp_size;
    const bool fs = c.parallel.fully_sharded;
    const int64_t rows = c.output_sizes[0] / (fs ? c.parallel.tp_size : 1);
    y = base_linear(
        split(c.x, c.parallel.tp_size, 1)[size_t(p)],
        split(c.weight, c.parallel.tp_size, 1)[size_t(p)].view(),
        c.has_bias && p == 0 ? std::optional<ConstTensorView>(c.bias.view()) : std::nullopt,
        c.dtype);
    x = fs ? c.x : split(c.x, c.parallel.tp_size, 1)[size_t(p)];
    a = Tensor(c.dtype, {c.max_loras, c.parallel.max_lora_rank, fs ? c.num_in : count});
    b = Tensor(c.dtype, {c.max_loras, rows, c.parallel.max_lora_rank});
    offset = fs ? p * rows : 0;
    for (int64_t s = 0; s < c.max_loras; ++s) {
      const int64_t rank = c.ranks[size_t(s)][0];
      ranks.push_back(int32_t(rank)), scalings.push_back(c.scalings[size_t(s)][0]);
      for (int64_t j = 0; j < rank; ++j) {
        const int64_t first = fs ? 0 : p * count;
        for (int64_t k = 0; k < a.shape()[2]; ++k) {
          a.set(c.a[size_t(s)][0].get(j, first + k), s, j, k);
        }
        for (int64_t n = 0; n < rows; ++n) {
          b.set(c.b[size_t(s)][0].get(offset + n, j), s, n, j);
        }
      }
    }
  }

  LinearArgs args(const ParallelCase& c) {
    return {.x = x.view(),
            .slots = c.slots,
            .slices = {{a.view(), b.view(), ranks, scalings, std::nullopt}},
            .offset_start = offset,
            .mode = c.mode,
            .y = y.view()};
  }

  Tensor x{Dtype::f32, {0}}, y{Dtype::f32, {0}}, a{Dtype::f32, {0}}, b{Dtype::f32, {0}};
  int64_t offset = 0;
  std::vector<int32_t> ranks;
  std::vector<float> scalings;
};

// |got - sum of the parts' base and delta| / bound, for one element.
double row_error_over_bound(const ParallelCase& c, std::vector<RowPart>& parts,
                            const std::vector<Oracle>& oracles, int64_t t, int64_t n, double got) {
  std::vector<double> partials, bounds;
  for (size_t p = 0; p < parts.size(); ++p) {
    const auto& facts = oracles[p].at(t, n);
    partials.push_back(facts ? facts->result() : parts[p].y.get(t, n));
    Arithmetic arithmetic = arithmetic_of(parts[p].args(c));
    if (c.parallel.fully_sharded) arithmetic.num_h_parts = c.parallel.tp_size;
    bounds.push_back(facts ? error_bound(*facts, arithmetic) : 0);
  }
  const double exact = std::accumulate(partials.begin(), partials.end(), 0.0);
  const double bound = all_reduce_error_bound(partials, bounds, c.dtype);
  if (got == exact) return 0;
  return std::fabs(got - exact) / bound;
}

// Of all cases of this run; printed at its end.
struct WorstRatios {
  double plain = 0, fully_sharded = 0;
  ~WorstRatios() {
    fmt::print("worst error/bound of row-parallel layers: {:.3f}, fully sharded {:.3f}\n", plain,
               fully_sharded);
  }
} worst_ratios;

// delta of one process in float64, to be what the parts add up to.
double whole_delta(const ParallelCase& c, int64_t t, int64_t n) {
  const int32_t slot = c.slots[size_t(t)];
  if (slot == kBaseSlot) return 0;
  double delta = 0;
  for (int64_t j = 0; j < c.ranks[size_t(slot)][0]; ++j) {
    double h = 0;
    for (int64_t k = 0; k < c.num_in; ++k) h += c.x.get(t, k) * c.a[size_t(slot)][0].get(j, k);
    delta += h * c.b[size_t(slot)][0].get(n, j);
  }
  return delta * double(c.scalings[size_t(slot)][0]);
}

// [1.18] [3.9] [3.10] P26: row-parallel layers on reals, default and fully sharded, rounded at the
// end or at every sum.
RC_GTEST_PROP(Parallel, P26RowLayersLieWithinTheBound, ()) {
  const auto seeded = sim::any_seeded_case(kMaxTokens);
  ParallelCase c(seeded.seed, seeded.num_ops, ParallelFill::reals, LayerKind::row);
  c.row_output = RowOutput::reduced;
  classify(c);
  std::vector<RowPart> parts;
  std::vector<Oracle> oracles;
  for (int64_t p = 0; p < c.parallel.tp_size; ++p) parts.emplace_back(c, p);
  for (RowPart& part : parts) oracles.push_back(linear_oracle(part.args(c)));
  const Tensor y = run_layer(c, c.adapters())[0];
  double& worst = c.parallel.fully_sharded ? worst_ratios.fully_sharded : worst_ratios.plain;
  for (int64_t t = 0; t < y.shape()[0]; ++t) {
    for (int64_t n = 0; n < y.shape()[1]; ++n) {
      double delta = 0;
      for (const Oracle& oracle : oracles) delta += oracle.at(t, n) ? oracle.at(t, n)->delta : 0;
      const double expected = whole_delta(c, t, n);
      RC_ASSERT(std::fabs(delta - expected) <= 1e-12 * (1 + std::fabs(expected)) * 100);
      const double ratio = row_error_over_bound(c, parts, oracles, t, n, y.get(t, n));
      RC_ASSERT(ratio <= 1);
      worst = std::max(worst, ratio);
    }
  }
}

// [3.7] [3.8b] P27: tp_ranks that share a head of k and v hold equal k and v, and the two q of them
// are not equal by accident of equal buffers: B of k differs between heads.
RC_GTEST_PROP(Parallel, P27TpRanksThatShareAHeadAgree, ()) {
  const auto seeded = sim::any_seeded_case(kMaxTokens);
  const ParallelCase c(seeded.seed, seeded.num_ops, ParallelFill::reals, LayerKind::qkv);
  RC_PRE(c.parallel.tp_size > c.qkv.num_kv_heads);
  classify(c);
  const auto y = run_layer(c, c.adapters());
  const int64_t rep = c.parallel.tp_size / c.qkv.num_kv_heads;
  const int64_t q_width = c.qkv.q_size / c.parallel.tp_size;
  const Range kv{q_width, 2 * c.qkv.head_dim};
  for (int64_t p = 0; p < c.parallel.tp_size; ++p) {
    RC_ASSERT(y[size_t(p)].shape()[1] == kv.end());
    const Tensor mine = columns_of(y[size_t(p)], {kv});
    const Tensor first = columns_of(y[size_t(p / rep * rep)], {kv});
    RC_ASSERT(same_bits(mine, first));
  }
}

// [3.4] [1.7] [1.11] P28: any R and P, every rank from 1 to R: the right result, or, where P does
// not divide R, a configuration error that names both.
RC_GTEST_PROP(Parallel, P28FullyShardedTakesEveryRank, ()) {
  const auto seeded = sim::any_seeded_case(kMaxTokens);
  ParallelCase c(seeded.seed, seeded.num_ops, ParallelFill::reals, LayerKind::column);
  sim::Draw draw(seeded.seed + 1);
  c.parallel.fully_sharded = true;
  c.parallel.max_lora_rank = draw.between(1, 17);
  for (size_t s = 0; s < c.ranks.size(); ++s) {
    const int64_t rank = c.ranks[s][0] = draw.between(1, c.parallel.max_lora_rank);
    c.a[s][0] = Tensor(c.dtype, {rank, c.num_in}),
    c.b[s][0] = Tensor(c.dtype, {c.num_out[0], rank});
    for (Tensor* t : {&c.a[s][0], &c.b[s][0]}) {
      for (int64_t i = 0; i < num_numbers(*t); ++i) set_number(*t, i, double(draw(1000)) / 300 - 1);
    }
    RC_CLASSIFY(rank < c.parallel.tp_size, "r < P");
    RC_CLASSIFY(rank % c.parallel.tp_size != 0, "r not a multiple of P");
  }
  const bool divides = c.parallel.max_lora_rank % c.parallel.tp_size == 0;
  RC_CLASSIFY(!divides, "P does not divide R");
  if (divides) {
    RC_ASSERT(holds(c, run_layer(c, c.adapters()), c.whole_result()));
    return;
  }
  try {
    c.shards();
    RC_FAIL("no configuration error");
  } catch (const InputError& e) {
    RC_ASSERT(e.what() == fmt::format("max_lora_rank: {} is not divisible by tp_size {}",
                                      c.parallel.max_lora_rank, c.parallel.tp_size));
  }
}

// [1.25] [3.3] [3.5] [3.6] [3.8] P15: one pair over all outputs, cut as one tensor or spread over
// the slices first: the same bits on every tp_rank. Halves and more, q | k | v with replication.
RC_GTEST_PROP(Parallel, P15AFusedAdapterIsItsSlicesOnEveryTpRank, ()) {
  const auto seeded = sim::any_seeded_case(kMaxTokens);
  const ParallelCase fused(seeded.seed, seeded.num_ops, ParallelFill::reals);
  RC_PRE(fused.num_out.size() == 1 && fused.output_sizes.size() > 1);
  classify(fused);
  ParallelCase spread = fused;
  spread.kind = fused.kind == LayerKind::fused_qkv ? LayerKind::qkv : LayerKind::merged;
  spread.num_out = fused.output_sizes;
  std::vector<LoraPairs> pairs;
  for (const LoraPairs& adapter : fused.adapters()) {
    pairs.push_back(adapter[0] ? expand_packed(adapter, spread.num_out)
                               : LoraPairs(spread.num_out.size(), std::nullopt));
  }
  const auto y = run_layer(fused, fused.adapters()), other = run_layer(spread, pairs);
  for (size_t p = 0; p < y.size(); ++p) RC_ASSERT(same_bits(y[p], other[p]));
}

// One adapter for each slot, of ranks 0 to R, on a layer [num_out, num_in].
struct VocabAdapters {
  VocabAdapters(sim::Draw& draw, int64_t num_slots, int64_t max_rank, int64_t num_in,
                int64_t num_out, Dtype dtype) {
    for (int64_t s = 0; s < num_slots; ++s) {
      const int64_t rank = draw.between(0, max_rank);
      a.emplace_back(dtype, Extents{rank, num_in}), b.emplace_back(dtype, Extents{num_out, rank});
      for (Tensor* t : {&a.back(), &b.back()}) fill(*t, draw);
    }
  }
  static void fill(Tensor& t, sim::Draw& draw) {
    for (int64_t i = 0; i < num_numbers(t); ++i) set_number(t, i, double(draw(4000)) / 1000 - 2);
  }
  std::vector<LoraPairs> pairs() const {
    std::vector<LoraPairs> out;
    for (size_t s = 0; s < a.size(); ++s) {
      if (a[s].shape()[0] == 0) {
        out.push_back({std::nullopt});
      } else {
        out.push_back({LoraPair{a[s].view(), b[s].view(), 0.5F + float(s)}});
      }
    }
    return out;
  }
  std::vector<Tensor> a, b;
};

struct VocabCase {
  explicit VocabCase(const sim::SeededCase& seeded) : draw(seeded.seed) {
    parallel = {.tp_size = int64_t(1) << draw(4), .fully_sharded = draw.one_in(2)};
    parallel.max_lora_rank = 8;
    dtype = draw.one_of({Dtype::f32, Dtype::f16, Dtype::bf16});
    mode = {IntermediateMode(draw(4)), SumMode(draw(2)), ScaleMode(draw(2))};
    hidden = draw.between(1, 12), vocab = draw.between(1, 20), num_slots = draw.between(1, 4);
    const int64_t p = parallel.tp_size;
    padded = (vocab + p - 1) / p * p + p * draw(3);
    for (int t = 0; t < seeded.num_ops; ++t) {
      slots.push_back(int32_t(draw.between(-1, num_slots - 1)));
      ids.push_back(draw(vocab));
    }
    weight = Tensor(dtype, {vocab, hidden});
    VocabAdapters::fill(weight, draw);
    RC_CLASSIFY(true, "P = " + std::to_string(p));
    RC_CLASSIFY(padded > vocab, "padded");
  }
  sim::Draw draw;
  ParallelConfig parallel;
  Dtype dtype;
  NumericMode mode;
  int64_t hidden, vocab, padded, num_slots;
  std::vector<int32_t> slots;
  std::vector<int64_t> ids;
  Tensor weight{Dtype::f32, {0}};
};

// [3.14] P26, embedding: every tp_rank has what one process has (reals, all modes).
RC_GTEST_PROP(Parallel, P26EmbeddingIsThatOfOneProcess, ()) {
  VocabCase c(sim::any_seeded_case(kMaxTokens));
  const VocabAdapters adapters(c.draw, c.num_slots, 8, c.vocab, c.hidden, c.dtype);
  const auto run = [&](const ParallelConfig& parallel) {
    const EmbeddingLayer layer(parallel, c.vocab, c.hidden, c.padded);
    const auto buffers = make_buffers(layer.shards, adapters.pairs(), c.dtype);
    return layer.run({c.ids, c.slots, c.weight.view(), buffers, c.mode});
  };
  Tensor y(c.dtype, {int64_t(c.ids.size()), c.hidden});
  for (size_t t = 0; t < c.ids.size(); ++t) {
    for (int64_t n = 0; n < c.hidden; ++n) y.set(c.weight.get(c.ids[t], n) + 0.0, int64_t(t), n);
  }
  const LayerShards whole = replicated_shards({.max_lora_rank = 8}, c.vocab, c.hidden);
  const LocalBuffers buffers = make_buffers(whole, adapters.pairs(), c.dtype)[0];
  const LocalSlice& slice = buffers.slices[0];
  lora_embedding(
      {.token_ids = c.ids,
       .slots = c.slots,
       .slice = {slice.a.view(), slice.b.view(), slice.expand_ranks, slice.scalings, std::nullopt},
       .mode = c.mode,
       .y = y.view()});
  for (const Tensor& got : run(c.parallel)) RC_ASSERT(same_bits(got, y));
}

// [3.15] [1.30] P26, logits: by shard and after the gather, padded or not, with a bias of
// the base layer or without, any P: the same bits.
RC_GTEST_PROP(Parallel, P26LogitsAreThoseOfOneProcess, ()) {
  VocabCase c(sim::any_seeded_case(kMaxTokens));
  const VocabAdapters adapters(c.draw, c.num_slots, 8, c.hidden, c.vocab, c.dtype);
  Tensor x(c.dtype, {int64_t(c.slots.size()), c.hidden});
  VocabAdapters::fill(x, c.draw);
  Tensor numbers(c.dtype, {c.vocab});
  VocabAdapters::fill(numbers, c.draw);
  const auto bias = c.draw.one_in(2) ? std::optional(std::as_const(numbers).view()) : std::nullopt;
  const auto run = [&](LogitsForm form, const ParallelConfig& parallel) {
    const LogitsLayer layer(form, parallel, c.hidden, c.vocab, c.padded);
    const auto buffers = make_buffers(layer.shards, adapters.pairs(), c.dtype);
    return layer.run({.x = std::vector<Tensor>(size_t(parallel.tp_size), x),
                      .slots = c.slots,
                      .weight = c.weight.view(),
                      .bias = bias,
                      .buffers = buffers,
                      .mode = c.mode,
                      .out = c.dtype,
                      .h_before = kNan});
  };
  Tensor y = base_linear(x, c.weight.view(), bias, c.dtype);
  const LayerShards whole = replicated_shards({.max_lora_rank = 8}, c.hidden, c.vocab);
  const LocalBuffers buffers = make_buffers(whole, adapters.pairs(), c.dtype)[0];
  const LocalSlice& slice = buffers.slices[0];
  lora_logits(x.view(), c.slots,
              {slice.a.view(), slice.b.view(), slice.expand_ranks, slice.scalings, std::nullopt},
              c.mode, y.view());
  for (const LogitsForm form : {LogitsForm::by_shard, LogitsForm::after_gather}) {
    for (const Tensor& got : run(form, c.parallel)) RC_ASSERT(same_bits(got, y));
  }
}

}  // namespace
}  // namespace loratory::reference
