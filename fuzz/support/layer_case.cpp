#include "fuzz/support/layer_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>

#include "fuzz/support/draw.hpp"
#include "reference/layout/batch_layout.hpp"

namespace loratory::reference {

using check::Operand;
using check::Palette;
using check::palette;
using check::poisoned_tensor;

namespace {

struct LayerStream {
  enum : uint64_t { kX, kY, kSlots, kRanks, kScalings, kGaps, kA = 100, kB = 200 };
};

uint64_t pick(const LayerCase& c, uint64_t stream, uint64_t index, uint64_t below) {
  return random_bits(c.seed, stream, index) % below;
}

int64_t up_to_8(int64_t n) { return (n + 7) / 8 * 8; }

int64_t columns_of(const LayerCase& c) {
  return std::accumulate(c.num_out.begin(), c.num_out.end(), int64_t(0));
}

int64_t weights_per_rank(const LayerCase& c) {
  return int64_t(c.num_out.size()) * c.num_in + columns_of(c);
}

// Of few ranks x and y cost more than the products do.
int64_t products_per_token(const LayerCase& c) {
  return std::max(16, c.max_rank) * weights_per_rank(c);
}

int64_t weight_bytes_per_slot(const LayerCase& c) { return 2 * c.max_rank * weights_per_rank(c); }

void draw_sizes(sim::Draw& draw, LayerCase& c) {
  c.num_in =
      draw.one_of<int64_t>({1, 17, 896, 2368, 2880, 3456, 4096, 4096, 4097, 4100, 11008, 14336});
  c.max_rank = draw.one_of({1, 2, 3, 5, 8, 12, 16, 16, 24, 32, 48, 64, 64, 96, 100, 128, 256, 512});
  const int64_t num_slices = draw.one_of<int64_t>({1, 1, 2, 3, 3, 4, 8});
  for (int64_t i = 0; i < num_slices; ++i) {
    const auto wide = draw.one_of<int64_t>({128, 512, 1000, 1024, 2049, 4096, 5120});
    const auto narrow = draw.one_of<int64_t>({1, 2, 3, 4, 7, 8, 31, 33, 64, 65, 100, 127});
    c.num_out.push_back(draw.one_in(3) ? wide : narrow);
  }
  c.num_tokens =
      draw.one_of<int64_t>({0,  1,  2,  3,   7,   8,   9,   16,  31,  32,   33,   40,   63,
                            64, 65, 96, 100, 128, 255, 256, 257, 512, 1025, 4096, 8192, 8192});
  c.max_loras = int32_t(draw.one_of({1, 2, 3, 4, 8, 16, 32, 64, 200, 513, 2000}));
  c.offset_start = draw.one_in(3) ? draw.between(1, 40) : 0;
}

void align(LayerCase& c) {
  c.num_in = up_to_8(c.num_in);
  c.max_rank = int32_t(up_to_8(c.max_rank));
  for (int64_t& n : c.num_out) n = up_to_8(n);
  c.offset_start = up_to_8(c.offset_start);
}

void draw_form(sim::Draw& draw, LayerCase& c) {
  c.weight = draw.one_of({Dtype::bf16, Dtype::f16});
  c.out = draw.one_in(4) ? Dtype::f32 : c.weight;
  if (draw.one_in(12)) c.out = c.weight == Dtype::f16 ? Dtype::bf16 : Dtype::f16;
  c.mapping = draw.one_of({Mapping::uniform, Mapping::uniform, Mapping::zipf, Mapping::zipf,
                           Mapping::identical, Mapping::distinct, Mapping::distinct});
  if (draw.one_in(40)) c.mapping = Mapping::base;
  c.fill = draw.one_of({Fill::reals, Fill::reals, Fill::reals, Fill::cancellation, Fill::tiny});
  c.mode.h =
      draw.one_of({IntermediateMode::fp32, IntermediateMode::split2, IntermediateMode::store_as_x});
  c.mode.sum = draw.one_of({SumMode::one_round, SumMode::two_round});
  c.add_inputs = !draw.one_in(4);
  c.aligned = !draw.one_in(3);
  c.padded = draw.one_in(3);
}

void cut_to(const LayerLimits& limits, LayerCase& c) {
  while (weight_bytes_per_slot(c) > limits.weight_bytes && c.max_rank > 8) {
    c.max_rank = c.aligned ? int32_t(up_to_8(c.max_rank / 2)) : c.max_rank / 2;
  }
  const int64_t most_slots = limits.weight_bytes / weight_bytes_per_slot(c);
  c.max_loras = int32_t(std::clamp<int64_t>(c.max_loras, 1, std::max<int64_t>(1, most_slots)));
  const int64_t most_tokens = limits.num_products / products_per_token(c);
  c.num_tokens = std::min(c.num_tokens, std::max<int64_t>(1, most_tokens));
}

int64_t gap_of(const LayerCase& c, uint64_t which) {
  if (!c.padded) return 0;
  const auto gap = int64_t(pick(c, LayerStream::kGaps, which, 5));
  return c.aligned ? 8 * gap : gap;
}

std::vector<bool> used_slots(const LayerCase& c, const std::vector<int32_t>& slots) {
  std::vector<bool> used(size_t(c.max_loras), c.fill_all_slots);
  for (const int32_t slot : slots) {
    if (slot >= 0) used[size_t(slot)] = true;
  }
  return used;
}

int32_t rank_of(const LayerCase& c, uint64_t index) {
  const uint64_t kind = pick(c, LayerStream::kRanks, 2 * index, 8);
  if (kind == 0) return c.min_rank;
  if (kind < 5) return c.max_rank;
  return int32_t(1 + pick(c, LayerStream::kRanks, 2 * index + 1, uint64_t(c.max_rank)));
}

float scaling_of(const LayerCase& c, uint64_t index) {
  constexpr std::array<float, 5> kExact{0.5F, 1, 2, -1, 0.5F};
  if (c.fill == Fill::small_integers) return kExact[pick(c, LayerStream::kScalings, index, 5)];
  return 0.3F + 0.37F * float(pick(c, LayerStream::kScalings, index, 9));
}

// Ranks, scalings, and numbers inside the ranks of the slots that have tokens.
LayerSlice slice_of(const LayerCase& c, size_t i, const std::vector<bool>& used) {
  LayerSlice out{
      poisoned_tensor(c.weight, {c.max_loras, c.max_rank, c.num_in}, gap_of(c, 2 * i)),
      poisoned_tensor(c.weight, {c.max_loras, c.num_out[i], c.max_rank}, gap_of(c, 2 * i + 1)),
      {},
      {}};
  for (int64_t s = 0; s < c.max_loras; ++s) {
    const auto index = i * size_t(c.max_loras) + size_t(s);
    out.ranks.push_back(rank_of(c, index));
    out.scalings.push_back(scaling_of(c, index));
  }
  const uint64_t a_stream = LayerStream::kA + i, b_stream = LayerStream::kB + i;
  const Palette& numbers = palette(c.fill, Operand::weight, c.weight);
  const TensorView a = out.a.view(), b = out.b.view();
#pragma omp parallel for schedule(dynamic)
  for (int64_t s = 0; s < c.max_loras; ++s) {
    const int64_t rank = used[size_t(s)] ? out.ranks[size_t(s)] : 0;
    for (int64_t j = 0; j < rank; ++j) {
      const auto first = uint64_t((s * c.max_rank + j) * c.num_in);
      fill_row({c.seed, a_stream, first}, numbers, c.weight, a.address(s, j, 0), c.num_in);
    }
    for (int64_t n = 0; rank > 0 && n < c.num_out[i]; ++n) {
      const auto first = uint64_t((s * c.num_out[i] + n) * c.max_rank);
      fill_row({c.seed, b_stream, first}, numbers, c.weight, b.address(s, n, 0), rank);
    }
  }
  return out;
}

void fill_with_anything(uint64_t seed, Tensor& t) {
  std::mt19937_64 engine(seed);
  size_t i = 0;
  for (; i + 8 <= t.bytes().size(); i += 8) {
    const uint64_t bits = engine();
    std::memcpy(t.bytes().data() + i, &bits, 8);
  }
  for (; i < t.bytes().size(); ++i) t.bytes()[i] = std::byte(engine());
}

constexpr int64_t kTailColumns = 8;  // of a padded y

// Base of one slice in row t, or NaN where nobody may read it.
void fill_base(const LayerData& data, uint64_t seed, const Palette& numbers, int64_t t, size_t i,
               Tensor& y) {
  const auto [begin, end] = data.columns(i);
  std::byte* const to = y.view().address(t, begin);
  if (!data.shape.add_inputs) {
    check::poison(y.dtype(), to, end - begin);
    return;
  }
  const auto first = uint64_t(t * data.shape.num_columns() + begin);
  fill_row({seed, LayerStream::kY, first}, numbers, y.dtype(), to, end - begin);
}

}  // namespace

int64_t LayerCase::num_columns() const { return offset_start + columns_of(*this); }

LayerCase layer_case(uint64_t seed, const LayerLimits& limits) {
  sim::Draw draw(seed);
  LayerCase c{.seed = seed, .num_out = {}};
  draw_sizes(draw, c);
  draw_form(draw, c);
  if (c.aligned) align(c);
  cut_to(limits, c);
  return c;
}

std::string describe(const LayerCase& c) {
  return fmt::format(
      "T {} K {} N {} offset {} L {} R {} {}->{} {} fill {} h {} sum {} add_inputs {} aligned {} "
      "padded {}",
      c.num_tokens, c.num_in, fmt::join(c.num_out, "|"), c.offset_start, c.max_loras, c.max_rank,
      name(c.weight), name(c.out), name(c.mapping), int(c.fill), int(c.mode.h), int(c.mode.sum),
      c.add_inputs, c.aligned, c.padded);
}

LayerData::LayerData(const LayerCase& c)
    : shape(c), batch{{}, Tensor(c.weight, {0, 0}), Tensor(c.out, {0, 0})} {
  const std::vector<int32_t> slots = draw_slots(c, c.mapping, c.seed);
  const std::vector<bool> used = used_slots(c, slots);
  for (size_t i = 0; i < c.num_out.size(); ++i) slices.push_back(slice_of(c, i, used));
  batch = make_batch(slots, c.seed);
}

LayerBatch LayerData::make_batch(std::vector<int32_t> slots, uint64_t seed) const {
  const auto num_tokens = int64_t(slots.size());
  const int64_t tail = shape.padded ? kTailColumns : 0;
  LayerBatch out{
      std::move(slots),
      poisoned_tensor(shape.weight, {num_tokens, shape.num_in}, gap_of(shape, 100)),
      poisoned_tensor(shape.out, {num_tokens, shape.num_columns() + tail}, gap_of(shape, 101))};
  fill_with_anything(seed, out.y);
  const Palette& x_numbers = palette(shape.fill, Operand::x, shape.weight);
  const Palette& y_numbers = palette(shape.fill, Operand::y, shape.out);
#pragma omp parallel for
  for (int64_t t = 0; t < num_tokens; ++t) {
    bool is_read = false;
    for (size_t i = 0; i < slices.size(); ++i) {
      if (!is_covered(out.slots[size_t(t)], i)) continue;
      is_read = true;
      fill_base(*this, seed, y_numbers, t, i, out.y);
    }
    if (!is_read) continue;
    fill_row({seed, LayerStream::kX, uint64_t(t * shape.num_in)}, x_numbers, shape.weight,
             out.x.view().address(t, 0), shape.num_in);
  }
  return out;
}

namespace {

template <typename T>
void move_numbers(std::vector<T>& values, const std::vector<int64_t>& to) {
  const std::vector<T> from = values;
  for (size_t s = 0; s < from.size(); ++s) values[size_t(to[s])] = from[s];
}

// The bytes of one slot, what lies behind its last row left out.
void copy_slot_bytes(const Tensor& from, int64_t s, Tensor& to, int64_t place) {
  const int64_t stride = from.strides()[0];
  const auto size = int64_t(size_bytes(from.dtype()));
  const int64_t count = (from.shape()[1] - 1) * from.strides()[1] + from.shape()[2];
  std::memcpy(to.bytes().data() + place * stride * size, from.bytes().data() + s * stride * size,
              size_t(count * size));
}

}  // namespace

void LayerData::move_slots(const std::vector<int64_t>& to) {
  for (LayerSlice& slice : slices) {
    move_numbers(slice.ranks, to), move_numbers(slice.scalings, to);
    for (Tensor* const weights : {&slice.a, &slice.b}) {
      const Tensor from = *weights;
      for (size_t s = 0; s < to.size(); ++s) copy_slot_bytes(from, int64_t(s), *weights, to[s]);
    }
  }
}

void LayerData::copy_slot(const LayerData& from, int64_t slot) {
  for (size_t i = 0; i < slices.size(); ++i) {
    const LayerSlice& source = from.slices[i];
    slices[i].ranks[size_t(slot)] = source.ranks[size_t(slot)];
    slices[i].scalings[size_t(slot)] = source.scalings[size_t(slot)];
    copy_slot_bytes(source.a, slot, slices[i].a, slot);
    copy_slot_bytes(source.b, slot, slices[i].b, slot);
  }
}

std::vector<int32_t> draw_slots(const LayerCase& c, Mapping mapping, uint64_t seed) {
  return check::draw_slots(mapping, c.max_loras, c.num_tokens, seed);
}

LinearArgs LayerData::args(LayerBatch& of) const {
  LinearArgs out{.x = std::as_const(of.x).view(),
                 .slots = of.slots,
                 .slices = {},
                 .offset_start = shape.offset_start,
                 .add_inputs = shape.add_inputs,
                 .mode = shape.mode,
                 .y = of.y.view()};
  for (const LayerSlice& s : slices) {
    out.slices.push_back({s.a.view(), s.b.view(), s.ranks, s.scalings, std::nullopt});
  }
  return out;
}

Tensor LayerData::run(const LayerBatch& of) const {
  LayerBatch copy = of;
  lora_linear(args(copy));
  return copy.y;
}

ColumnRange LayerData::columns(size_t slice) const {
  const auto first = shape.num_out.begin();
  const int64_t begin = std::accumulate(first, first + ptrdiff_t(slice), shape.offset_start);
  return {begin, begin + shape.num_out[slice]};
}

LayerBatch rows_of(const LayerBatch& batch, const std::vector<int64_t>& rows) {
  const auto part = [&](const Tensor& from) {
    Tensor to(from.dtype(), {int64_t(rows.size()), from.shape()[1]}, from.strides());
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto bytes = row_bytes(from, rows[i]);
      if (!bytes.empty()) std::ranges::copy(bytes, to.view().address(i, 0));
    }
    return to;
  };
  LayerBatch out{{}, part(batch.x), part(batch.y)};
  for (const int64_t t : rows) out.slots.push_back(batch.slots[size_t(t)]);
  return out;
}

std::span<const std::byte> row_bytes(const Tensor& t, int64_t row) {
  if (t.shape()[1] == 0) return {};
  return {t.view().address(row, 0), size_t(t.shape()[1]) * size_bytes(t.dtype())};
}

bool same_row(const Tensor& left, int64_t l, const Tensor& right, int64_t r) {
  return std::ranges::equal(row_bytes(left, l), row_bytes(right, r));
}

Tensor covered_part(const LayerData& data, const LayerBatch& before, const Tensor& after) {
  Tensor out = before.y;
  const TensorView to = out.view();
  for (int64_t t = 0; t < before.num_tokens(); ++t) {
    for (size_t i = 0; i < data.slices.size(); ++i) {
      if (!data.is_covered(before.slots[size_t(t)], i)) continue;
      const auto [begin, end] = data.columns(i);
      std::memcpy(to.address(t, begin), after.view().address(t, begin),
                  size_t(end - begin) * size_bytes(out.dtype()));
    }
  }
  return out;
}

void scale_numbers(Tensor& t, double factor) {
  for (int64_t i = 0; i < num_numbers(t); ++i) {
    const double v = number(t, i);
    if (!std::isnan(v)) set_number(t, i, v * factor);
  }
}

}  // namespace loratory::reference
