#include "fuzz/support/parallel_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <ostream>

namespace loratory::reference {
namespace {

void fill(Tensor& t, sim::Draw& draw, ParallelFill numbers, double magnitude) {
  const size_t size = size_bytes(t.dtype());
  for (size_t at = 0; at < t.bytes().size(); at += size) {
    const double value = numbers == ParallelFill::integers
                             ? double(draw.between(-1, 1))
                             : double(draw.between(-2'000'000, 2'000'000)) * 1e-6 * magnitude;
    store(t.dtype(), t.bytes().data() + at, value);
  }
}

// The second half of every row is the first times `factor`.
void repeat_first_half(Tensor& t, double factor) {
  const int64_t half = t.shape()[1] / 2;
  for (int64_t i = 0; i < t.shape()[0]; ++i) {
    for (int64_t k = 0; k < half; ++k) t.set(t.get(i, k) * factor, i, half + k);
  }
}

// All slots of one slice on one process: [L, R, K] and [L, N, R], NaN beyond the ranks.
struct WholeSlice {
  WholeSlice(const ParallelCase& c, size_t slice)
      : a(c.dtype, {c.max_loras, c.parallel.max_lora_rank, c.num_in}),
        b(c.dtype, {c.max_loras, c.num_out[slice], c.parallel.max_lora_rank}) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (int64_t s = 0; s < c.max_loras; ++s) {
      const int64_t rank = c.ranks[size_t(s)][slice];
      ranks.push_back(int32_t(rank));
      scalings.push_back(c.scalings[size_t(s)][slice]);
      const Tensor& from_a = c.a[size_t(s)][slice];
      const Tensor& from_b = c.b[size_t(s)][slice];
      for (int64_t j = 0; j < c.parallel.max_lora_rank; ++j) {
        for (int64_t k = 0; k < c.num_in; ++k) a.set(j < rank ? from_a.get(j, k) : nan, s, j, k);
        for (int64_t n = 0; n < c.num_out[slice]; ++n) {
          b.set(j < rank ? from_b.get(n, j) : nan, s, n, j);
        }
      }
    }
  }

  Tensor a, b;
  std::vector<int32_t> ranks;
  std::vector<float> scalings;
};

}  // namespace

std::string_view name(LayerKind kind) {
  constexpr std::string_view kNames[] = {"column",    "fused column", "merged",    "qkv",
                                         "fused qkv", "row",          "replicated"};
  return kNames[size_t(kind)];
}

ParallelCase::ParallelCase(uint64_t seed, int num_tokens, ParallelFill numbers,
                           std::optional<LayerKind> kind_wanted) {
  sim::Draw draw(seed);
  kind = LayerKind(draw(kNumLayerKinds));
  if (kind_wanted) kind = *kind_wanted;
  draw_sizes(draw, numbers);
  draw_outputs(draw);
  int64_t total_out = 0;
  for (const int64_t size : output_sizes) total_out += size;
  num_out = output_sizes;
  if (kind == LayerKind::fused_column || kind == LayerKind::fused_qkv) num_out = {total_out};
  weight = Tensor(dtype, {total_out, num_in});
  bias = Tensor(dtype, {total_out});
  fill(weight, draw, numbers, magnitude_), fill(bias, draw, numbers, magnitude_);
  draw_adapters(draw, numbers);
  const int64_t p = parallel.tp_size;
  const bool scattered = kind == LayerKind::row && row_output == RowOutput::scattered;
  const int64_t count = scattered ? (num_tokens + p - 1) / p * p : num_tokens;
  x = Tensor(dtype, {count, num_in});
  fill(x, draw, numbers, magnitude_);
  if (cancels_) repeat_first_half(x, -1 - 0x1p-6);
  for (int64_t t = 0; t < count; ++t) slots.push_back(int32_t(draw.between(-1, max_loras - 1)));
}

void ParallelCase::draw_sizes(sim::Draw& draw, ParallelFill numbers) {
  const bool integers = numbers == ParallelFill::integers;
  magnitude_ = !integers && draw.one_in(4) ? 0x1p-8 : 1;
  cancels_ = !integers && draw.one_in(4);
  dtype = draw.one_of({Dtype::f32, Dtype::f16, Dtype::bf16});
  mode = {IntermediateMode(draw(4)), SumMode(draw(2)), ScaleMode(draw(2))};
  const int64_t p = parallel.tp_size = int64_t(1) << draw(4);
  parallel.fully_sharded = draw.one_in(2);
  const bool small = integers && dtype == Dtype::bf16;
  const int64_t max_rank = small ? 8 : 16;
  parallel.max_lora_rank =
      parallel.fully_sharded ? p * draw.between(1, max_rank / p) : draw.between(3, max_rank);
  num_in = kind == LayerKind::row ? 8 * draw.between(1, small ? 2 : 3)
                                  : draw.between(1, small ? 16 : 24);
  has_bias = draw.one_in(2);
  gather_output = kind == LayerKind::column && draw.one_in(2);
  input_is_parallel = draw.one_in(2);
  row_output = RowOutput(draw(3));
  rounding = ReduceRounding(draw(2));
  max_loras = draw.between(1, 4);
}

void ParallelCase::draw_outputs(sim::Draw& draw) {
  const int64_t p = parallel.tp_size;
  if (kind == LayerKind::qkv || kind == LayerKind::fused_qkv) {
    qkv.num_kv_heads = draw.one_in(2) ? p * draw.between(1, 2) : std::max<int64_t>(1, p >> draw(4));
    qkv.num_heads = std::max(p, qkv.num_kv_heads) * draw.between(1, 2);
    qkv.head_dim = draw.between(1, 3);
    qkv.q_size = qkv.num_heads * qkv.head_dim * draw.between(1, 2);
    output_sizes = {qkv.q_size, qkv.kv_size(), qkv.kv_size()};
    return;
  }
  const bool one_output = kind != LayerKind::merged && kind != LayerKind::fused_column;
  const int64_t num_outputs = one_output ? 1 : draw.between(1, 4);
  const bool any_size =
      kind == LayerKind::replicated || (kind == LayerKind::row && !parallel.fully_sharded);
  for (int64_t i = 0; i < num_outputs; ++i) {
    output_sizes.push_back(any_size ? draw.between(1, 9) : p * draw.between(1, 3));
  }
}

void ParallelCase::draw_adapters(sim::Draw& draw, ParallelFill numbers) {
  const bool integers = numbers == ParallelFill::integers;
  const int64_t max_rank = parallel.max_lora_rank;
  for (int64_t s = 0; s < max_loras; ++s) {
    ranks.emplace_back(), scalings.emplace_back(), a.emplace_back(), b.emplace_back();
    const bool empty = draw.one_in(5);
    for (const int64_t columns : num_out) {
      int64_t rank = std::min(max_rank, draw.one_of<int64_t>({1, 3, max_rank, max_rank}));
      if (empty || draw.one_in(4)) rank = 0;
      ranks.back().push_back(rank);
      scalings.back().push_back(integers ? draw.one_of({0.5F, 1.0F, -1.0F})
                                         : 0.3F + 0.37F * float(draw(9)));
      a.back().emplace_back(dtype, Extents{rank, num_in});
      b.back().emplace_back(dtype, Extents{columns, rank});
      for (Tensor* t : {&a.back().back(), &b.back().back()}) fill(*t, draw, numbers, magnitude_);
      if (cancels_) repeat_first_half(a.back().back(), 1);
    }
  }
}

LayerShards ParallelCase::shards_of(const ParallelConfig& config) const {
  switch (kind) {
    case LayerKind::column:
      return column_shards(config, num_in, output_sizes[0]);
    case LayerKind::fused_column:
      return fused_column_shards(config, num_in, output_sizes);
    case LayerKind::merged:
      return merged_column_shards(config, num_in, output_sizes);
    case LayerKind::qkv:
      return qkv_shards(config, num_in, qkv);
    case LayerKind::fused_qkv:
      return fused_qkv_shards(config, num_in, qkv);
    case LayerKind::row:
      return row_shards(config, num_in, output_sizes[0]);
    case LayerKind::replicated:
      break;
  }
  return replicated_shards(config, num_in, output_sizes[0]);
}

std::vector<LoraPairs> ParallelCase::adapters() const {
  std::vector<LoraPairs> out;
  for (size_t s = 0; s < a.size(); ++s) {
    out.emplace_back();
    for (size_t i = 0; i < num_out.size(); ++i) {
      if (ranks[s][i] == 0) {
        out.back().emplace_back(std::nullopt);
      } else {
        out.back().emplace_back(LoraPair{a[s][i].view(), b[s][i].view(), scalings[s][i]});
      }
    }
  }
  return out;
}

Tensor ParallelCase::whole_base() const {
  const std::optional<ConstTensorView> with_bias =
      has_bias ? std::optional<ConstTensorView>(bias.view()) : std::nullopt;
  return base_linear(x, weight.view(), with_bias, dtype);
}

Tensor ParallelCase::whole_result() const {
  Tensor y = whole_base();
  std::vector<WholeSlice> slices;
  for (size_t i = 0; i < num_out.size(); ++i) slices.emplace_back(*this, i);
  LinearArgs args{.x = x.view(), .slots = slots, .slices = {}, .mode = mode, .y = y.view()};
  for (const WholeSlice& slice : slices) {
    args.slices.push_back(
        {slice.a.view(), slice.b.view(), slice.ranks, slice.scalings, std::nullopt});
  }
  lora_linear(args);
  return y;
}

std::ostream& operator<<(std::ostream& out, const ParallelCase& c) {
  return out << fmt::format("{} P={} fully_sharded={} R={} K={} S={} {}", name(c.kind),
                            c.parallel.tp_size, c.parallel.fully_sharded, c.parallel.max_lora_rank,
                            c.num_in, c.num_out.size(), name(c.dtype));
}

}  // namespace loratory::reference
