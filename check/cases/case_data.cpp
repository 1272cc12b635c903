#include "check/cases/case_data.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "check/cases/draw.hpp"
#include "reference/base/integers.hpp"

namespace loratory::check {

using reference::Dtype;
using reference::Extents;
using reference::Tensor;
using reference::TensorView;

namespace {

enum Stream : uint64_t {
  kX,
  kY,
  kSlots,
  kScalings,
  kIds,
  kExperts,
  kRouter,
  kH,
  kBlocks,
  kGaps,
  kAnything,
  kExpertRanks,
  kXScale,
  kHScale,
  kAway,
  kOff,
  kA = 100,
  kB = 200,
  kAScale = 300,
  kBScale = 400
};

// Numbers keep their place when a buffer gets more room, so that they stay what they are.
constexpr uint64_t kMostRanks = uint64_t(1) << 20;

uint64_t pick(const Case& c, uint64_t stream, uint64_t index, uint64_t below) {
  return random_bits(c.seed, stream, index) % below;
}

int64_t gap_of(const Case& c, uint64_t which, Dtype dtype) {
  if (!c.gaps) return 0;
  const int64_t unit = c.alignment == 0 ? 8 : row_unit(c.alignment, dtype);
  return unit * int64_t(1 + random_bits(uint64_t(c.num_in), kGaps, which) % 4);
}

// Zipf of exponent 1 over the slots, slot 0 not the favourite.
std::vector<double> zipf_sums(int64_t max_loras) {
  std::vector<double> sums;
  for (int64_t i = 0; i < max_loras; ++i) {
    sums.push_back((sums.empty() ? 0 : sums.back()) +
                   1.0 / double(1 + (i + max_loras / 2) % max_loras));
  }
  return sums;
}

float scaling_of(const Case& c, uint64_t index) {
  constexpr std::array<float, 5> kExact{0.5F, 1, 2, -1, 0.5F};
  if (c.fill == Fill::small_integers) return kExact[pick(c, kScalings, index, 5)];
  return 0.3F + 0.37F * float(pick(c, kScalings, index, 9));
}

float factor_of(const Case& c, uint64_t stream, uint64_t index) {
  constexpr std::array<float, 4> kExact{0.5F, 1, 2, 0.25F};
  if (c.fill == Fill::small_integers) return kExact[pick(c, stream, index, 4)];
  return 0.01F + 0.013F * float(pick(c, stream, index, 17));
}

float router_weight_of(const Case& c, uint64_t index) {
  constexpr std::array<float, 4> kExact{0.5F, 1, 0.25F, 0.125F};
  if (c.fill == Fill::small_integers) return kExact[pick(c, kRouter, index, 4)];
  return (1 + float(pick(c, kRouter, index, 997))) / 1000;
}

// --- weights --------------------------------------------------------------------------------

void make_zero(Tensor& t) { std::ranges::fill(t.bytes(), std::byte{0}); }

Tensor weight_tensor(const CaseData& data, const Extents& shape, int64_t gap) {
  Tensor out = poisoned_tensor(data.shape.weight, shape, gap);
  if (data.beyond == BeyondRank::zeros) make_zero(out);
  return out;
}

// [L, R, K], or with experts [L, E, R, K].
Extents with_experts(const Case& c, int64_t rows, int64_t columns) {
  if (!c.has_experts()) return {c.num_slots(), rows, columns};
  return {c.num_slots(), c.num_experts, rows, columns};
}

std::byte* row_address(Tensor& t, const Case& c, int64_t slot, int64_t expert, int64_t row) {
  const TensorView view = t.view();
  return c.has_experts() ? view.address(slot, expert, row, 0) : view.address(slot, row, 0);
}

NumberStream a_row(const Case& c, size_t slice, uint64_t pair, uint64_t rank) {
  return {c.seed, kA + slice, (pair * kMostRanks + rank) * uint64_t(c.num_in)};
}
NumberStream b_row(const Case& c, size_t slice, uint64_t pair, uint64_t column) {
  return {c.seed, kB + slice, (pair * uint64_t(c.num_out[slice]) + column) * kMostRanks};
}

// A and B of one slot and expert, each row where `a_at` and `b_at` say.
template <typename AAt, typename BAt>
void fill_adapter(const CaseData& data, size_t slice, int64_t pair, AAt&& a_at, BAt&& b_at) {
  const Case& c = data.shape;
  const Palette& numbers = palette(c.fill, Operand::weight, c.weight);
  const int64_t rank = data.slices[slice].ranks[size_t(pair)];
  for (int64_t j = 0; j < rank; ++j) {
    if (std::byte* const to = a_at(j)) {
      fill_row(a_row(c, slice, uint64_t(pair), uint64_t(j)), numbers, c.weight, to, c.num_in);
    }
  }
  for (int64_t n = 0; rank > 0 && n < c.num_out[slice]; ++n) {
    if (std::byte* const to = b_at(n)) {
      fill_row(b_row(c, slice, uint64_t(pair), uint64_t(n)), numbers, c.weight, to, rank);
    }
  }
}

void add_weights(CaseData& data, size_t i) {
  const Case& c = data.shape;
  SliceData& slice = data.slices[i];
  const uint64_t which = 2 * i;
  if (!c.expands()) {
    slice.a =
        weight_tensor(data, with_experts(c, c.max_rank, c.num_in), gap_of(c, which, c.weight));
  }
  if (!c.shrinks()) {
    slice.b = weight_tensor(data, with_experts(c, c.num_out[i], c.max_rank),
                            gap_of(c, which + 1, c.weight));
  }
  for (int64_t pair = 0; pair < int64_t(slice.ranks.size()); ++pair) {
    const int64_t slot = pair / c.num_experts, expert = pair % c.num_experts;
    fill_adapter(
        data, i, pair,
        [&](int64_t j) { return slice.a ? row_address(*slice.a, c, slot, expert, j) : nullptr; },
        [&](int64_t n) { return slice.b ? row_address(*slice.b, c, slot, expert, n) : nullptr; });
  }
}

// Slice i of a slot lies at the distance of the slot's rank behind the first.
void add_stacked(CaseData& data) {
  const Case& c = data.shape;
  const auto num_slices = int64_t(c.num_out.size());
  const int64_t columns = c.num_columns() - c.offset_start;
  data.stacked_a = weight_tensor(data, {c.num_slots(), num_slices * c.max_rank, c.num_in}, 0);
  data.stacked_b = weight_tensor(data, {c.num_slots(), columns, c.max_rank}, 0);
  const TensorView a = data.stacked_a->view(), b = data.stacked_b->view();
  int64_t column = 0;
  for (size_t i = 0; i < c.num_out.size(); ++i) {
    for (int64_t slot = 0; slot < c.num_slots(); ++slot) {
      const int64_t first = int64_t(i) * c.rank(slot, i);
      fill_adapter(
          data, i, slot, [&](int64_t j) { return a.address(slot, first + j, 0); },
          [&](int64_t n) { return b.address(slot, column + n, 0); });
    }
    column += c.num_out[i];
  }
}

bool has_expert(const Case& c, size_t slice, int64_t slot, int64_t expert) {
  if (c.num_experts == 1) return true;
  const auto index = uint64_t((slot * c.num_experts + expert) * 64 + int64_t(slice));
  return pick(c, kExpertRanks, index, 4) != 0;
}

void add_adapters(CaseData& data) {
  const Case& c = data.shape;
  for (size_t i = 0; i < c.num_out.size(); ++i) {
    SliceData slice;
    const size_t scaling_slice = c.layout == LORATORY_LAYOUT_STACKED ? 0 : i;
    for (int64_t s = 0; s < c.num_slots(); ++s) {
      for (int64_t e = 0; e < c.num_experts; ++e) {
        slice.ranks.push_back(has_expert(c, i, s, e) ? c.rank(s, i) : 0);
        slice.scalings.push_back(
            scaling_of(c, uint64_t((s * c.num_experts + e) * 64) + scaling_slice));
      }
    }
    data.slices.push_back(std::move(slice));
  }
}

// --- factors of 8-bit numbers ---------------------------------------------------------------

// Of the sizes alone: another seed, or more room for ranks, has the same blocks.
void draw_blocks(CaseData& data) {
  const Case& c = data.shape;
  if (c.weight_scales != LORATORY_SCALES_BLOCK) return;
  constexpr std::array<int64_t, 4> kSmall{1, 2, 3, 5}, kLarge{16, 32, 64, 128};
  const auto block = [&](uint64_t which, int64_t size) {
    const uint64_t at = random_bits(uint64_t(c.num_in), kBlocks, which) % 4;
    return (size >= 64 ? kLarge : kSmall)[at];
  };
  data.a_block_n = block(0, 1), data.a_block_k = block(1, c.num_in);
  data.b_block_n = block(2, c.num_out[0]), data.b_block_k = c.num_in >= 64 ? 16 : block(3, 1);
}

// Factors of a weight [L, rows, columns]; those of the first `num_rows` rows and `num_columns`
// columns of a slot that has any are numbers, the others NaN.
struct WeightScale {
  uint64_t stream;
  int64_t rows, columns, block_n, block_k;
};

Tensor weight_scale(const CaseData& data, const WeightScale& of,
                    const std::vector<std::pair<int64_t, int64_t>>& used) {
  const Case& c = data.shape;
  const bool is_block = c.weight_scales == LORATORY_SCALES_BLOCK;
  const bool is_tensor = c.weight_scales == LORATORY_SCALES_TENSOR;
  const int64_t per_slot_rows = is_tensor ? 1 : is_block ? ceil_div(of.rows, of.block_n) : of.rows;
  const int64_t per_row = is_block ? ceil_div(of.columns, of.block_k) : 1;
  const int64_t num_slots = c.num_slots();
  Extents shape{num_slots};
  if (!is_tensor) shape.push_back(per_slot_rows);
  if (is_block) shape.push_back(per_row);
  Tensor out = poisoned_tensor(Dtype::f32, shape);
  if (data.beyond == BeyondRank::zeros) make_zero(out);  // 0 times a factor of NaN is no zero
  for (int64_t s = 0; s < num_slots; ++s) {
    const auto [num_rows, num_columns] = used[size_t(s)];
    if (num_rows == 0 || num_columns == 0) continue;
    const int64_t rows = is_tensor ? 1 : is_block ? ceil_div(num_rows, of.block_n) : num_rows;
    const int64_t columns = is_block ? ceil_div(num_columns, of.block_k) : 1;
    for (int64_t i = 0; i < rows * columns; ++i) {
      const int64_t row = i / columns, column = i % columns;
      const auto index = uint64_t(((s << 20) + row) << 20) + uint64_t(column);
      const float factor = factor_of(c, of.stream, index);
      std::memcpy(out.bytes().data() + ((s * per_slot_rows + row) * per_row + column) * 4, &factor,
                  4);
    }
  }
  return out;
}

void add_weight_scales(CaseData& data, size_t i) {
  const Case& c = data.shape;
  SliceData& slice = data.slices[i];
  std::vector<std::pair<int64_t, int64_t>> used_a, used_b;
  for (const int32_t rank : slice.ranks) {
    used_a.emplace_back(rank, c.num_in);
    used_b.emplace_back(rank == 0 ? 0 : c.num_out[i], rank);
  }
  if (slice.a) {
    slice.a_scale = weight_scale(
        data, {kAScale + i, c.max_rank, c.num_in, data.a_block_n, data.a_block_k}, used_a);
  }
  if (slice.b) {
    slice.b_scale = weight_scale(
        data, {kBScale + i, c.num_out[i], c.max_rank, data.b_block_n, data.b_block_k}, used_b);
  }
}

// --- steps ----------------------------------------------------------------------------------

// A step that grows: rows of x by content, wherever they stand.
struct StepMaker {
  const CaseData& data;
  std::span<const int64_t> contents;
  StepData& out;

  const Case& c() const { return data.shape; }
  int64_t k() const { return c().experts_per_token; }
  int64_t num_rows() const { return out.num_tokens() * k(); }

  void add_ids() const {
    for (const int64_t content : contents) {
      out.token_ids.push_back(int64_t(pick(c(), kIds, uint64_t(content), uint64_t(c().num_in))));
    }
  }

  void add_experts() const {
    for (const int64_t content : contents) {
      std::vector<int32_t> all(size_t(c().num_experts));
      std::iota(all.begin(), all.end(), 0);
      for (int64_t i = 0; i < k(); ++i) {
        const auto index = uint64_t(content * k() + i);
        const auto other = size_t(i) + pick(c(), kExperts, index, all.size() - size_t(i));
        std::swap(all[size_t(i)], all[other]);
        const bool is_away = c().absent_experts && pick(c(), kAway, index, 4) == 0;
        out.experts.push_back(is_away ? -1 : all[size_t(i)]);
        if (c().router_weights) out.router_weights.push_back(router_weight_of(c(), index));
      }
    }
  }

  void add_enabled() const {
    for (int64_t s = 0; s < c().num_slots(); ++s) {
      out.enabled.push_back(pick(c(), kOff, uint64_t(s), 4) == 0 ? 0 : 1);
    }
  }

  // Does anybody read a row of x that is the token's alone, or that of one of its experts?
  bool is_read(int64_t row, int64_t rows_per_token) const {
    if (out.active_slot(row / rows_per_token) < 0) return false;
    return !c().x_by_row || out.experts[size_t(row)] >= 0;
  }

  void add_x() const {
    const int64_t per_token = c().x_by_row ? k() : 1;
    const int64_t rows = out.num_tokens() * per_token;
    out.x = poisoned_tensor(c().x, {rows, c().num_in}, gap_of(c(), 100, c().x));
    const Palette& numbers = palette(c().fill, Operand::x, c().x);
    for (int64_t row = 0; row < rows; ++row) {
      if (!is_read(row, per_token)) continue;
      const int64_t content = contents[size_t(row / per_token)] * per_token + row % per_token;
      fill_row({c().seed, kX, uint64_t(content * c().num_in)}, numbers, c().x,
               out.x->view().address(row, 0), c().num_in);
    }
  }

  // [S, rows, R]: numbers below the rank.
  void add_h() const {
    const auto num_slices = int64_t(c().num_out.size());
    const Dtype dtype = c().has_quantized_activations() ? c().x : c().h;
    out.h = poisoned_tensor(dtype, {num_slices, num_rows(), c().max_rank}, gap_of(c(), 101, dtype));
    if (data.beyond == BeyondRank::zeros) make_zero(*out.h);
    const Palette& numbers = palette(c().fill, Operand::h, dtype);
    for (int64_t i = 0; i < num_slices; ++i) {
      for (int64_t row = 0; row < num_rows(); ++row) {
        const int64_t rank = rank_at(row, size_t(i));
        const int64_t content = contents[size_t(row / k())] * k() + row % k();
        if (rank == 0) continue;
        fill_row({c().seed, kH, uint64_t(content * 64 + i) * kMostRanks}, numbers, dtype,
                 out.h->view().address(i, row, 0), rank);
      }
    }
  }

  int64_t rank_at(int64_t row, size_t slice) const {
    const int32_t slot = out.active_slot(row / k());
    const int32_t expert = c().has_experts() ? out.experts[size_t(row)] : 0;
    return slot < 0 || expert < 0 ? 0 : data.rank(slice, slot, expert);
  }

  void add_x_scale() const {
    const bool is_tensor = c().activation_scales == LORATORY_SCALES_TENSOR;
    const bool is_block = c().activation_scales == LORATORY_SCALES_BLOCK;
    const int64_t groups = is_block ? ceil_div(c().num_in, data.a_block_k) : 1;
    out.x_scale =
        poisoned_tensor(Dtype::f32, is_tensor ? Extents{} : Extents{out.num_tokens(), groups});
    if (is_tensor) return out.x_scale->set(factor_of(c(), kXScale, 0));
    for (int64_t t = 0; t < out.num_tokens(); ++t) {
      if (out.slots[size_t(t)] < 0) continue;
      for (int64_t g = 0; g < groups; ++g) {
        const auto index = uint64_t((contents[size_t(t)] << 20) + g);
        out.x_scale->set(factor_of(c(), kXScale, index), t, g);
      }
    }
  }

  void add_h_scale() const {
    const bool is_tensor = c().activation_scales == LORATORY_SCALES_TENSOR;
    const bool is_block = c().activation_scales == LORATORY_SCALES_BLOCK;
    const auto num_slices = int64_t(c().num_out.size());
    const int64_t room = is_block ? ceil_div<int64_t>(c().max_rank, data.b_block_k) : 1;
    out.h_scale = poisoned_tensor(
        Dtype::f32, is_tensor ? Extents{num_slices} : Extents{num_slices, out.num_tokens(), room});
    if (data.beyond == BeyondRank::zeros) make_zero(*out.h_scale);
    for (int64_t i = 0; i < num_slices; ++i) {
      if (is_tensor) out.h_scale->set(factor_of(c(), kHScale, uint64_t(i)), i);
      for (int64_t t = 0; !is_tensor && t < out.num_tokens(); ++t) {
        const int64_t rank = rank_at(t, size_t(i));
        const int64_t groups =
            is_block ? ceil_div(rank, data.b_block_k) : std::min<int64_t>(rank, 1);
        for (int64_t g = 0; g < groups; ++g) {
          const auto index = uint64_t(((contents[size_t(t)] * 64 + i) << 20) + g);
          out.h_scale->set(factor_of(c(), kHScale, index), i, t, g);
        }
      }
    }
  }

  // Anything at all, NaN included, in what is to be written and in what must not be.
  void add_output(std::optional<Tensor>& output, Dtype dtype, const Extents& shape) const {
    output = poisoned_tensor(dtype, shape, gap_of(c(), 102, dtype));
    auto& bytes = output->bytes();
    if (data.beyond == BeyondRank::zeros) {
      fill_row({c().seed, kAnything, 1}, palette(Fill::reals, Operand::y, dtype), dtype,
               bytes.data(), int64_t(bytes.size() / size_bytes(dtype)));
      return;
    }
    for (size_t i = 0; i < bytes.size(); i += 8) {
      const uint64_t bits = random_bits(c().seed, kAnything, i);
      std::memcpy(bytes.data() + i, &bits, std::min<size_t>(8, bytes.size() - i));
    }
  }

  // Base where it is read, NaN where nobody may.
  void add_base() const {
    const Palette& numbers = palette(c().fill, Operand::y, c().y);
    const auto size = int64_t(size_bytes(c().y));
    for (const Stretch& s : data.covered(out)) {
      std::byte* const to = out.y->bytes().data() + s.element * size;
      const int64_t content = contents[size_t(s.row / k())] * k() + s.row % k();
      if (c().add_inputs) {
        fill_row({c().seed, kY, uint64_t(content * c().num_columns() + s.first)}, numbers, c().y,
                 to, s.count);
      } else {
        poison_signalling(c().y, to, s.count);
      }
    }
  }
};

}  // namespace

CaseData::CaseData(const Case& c, BeyondRank beyond_rank) : shape(c), beyond(beyond_rank) {
  draw_blocks(*this);
  add_adapters(*this);
  if (c.layout == LORATORY_LAYOUT_STACKED) {
    add_stacked(*this);
  } else {
    for (size_t i = 0; i < slices.size(); ++i) add_weights(*this, i);
  }
  for (size_t i = 0; c.is_quantized() && i < slices.size(); ++i) add_weight_scales(*this, i);
  std::vector<int64_t> contents(size_t(c.num_tokens));
  std::iota(contents.begin(), contents.end(), 0);
  step = make_step(
      c.slots.empty() ? draw_slots(c.mapping, c.num_slots(), c.num_tokens, c.seed) : c.slots,
      contents);
}

StepData CaseData::make_step(const std::vector<int32_t>& slots,
                             std::span<const int64_t> contents) const {
  StepData out{.slots = slots,
               .token_ids = {},
               .experts = {},
               .enabled = {},
               .router_weights = {},
               .x = {},
               .x_scale = {},
               .h = {},
               .h_scale = {},
               .y = {}};
  const Case& c = shape;
  const StepMaker maker{*this, contents, out};
  if (c.has_experts()) maker.add_experts();
  if (c.disabled_slots) maker.add_enabled();
  if (c.operation == LORATORY_OP_EMBEDDING) {
    maker.add_ids();
  } else if (c.expands()) {
    maker.add_h();
    if (c.has_quantized_activations()) maker.add_h_scale();
  } else {
    maker.add_x();
    if (c.has_quantized_activations()) maker.add_x_scale();
  }
  if (c.shrinks()) {
    maker.add_output(out.h, c.h, {int64_t(c.num_out.size()), maker.num_rows(), c.max_rank});
  } else {
    maker.add_output(out.y, c.y, {maker.num_rows(), c.num_columns()});
    maker.add_base();
  }
  return out;
}

StepData CaseData::step_of(std::span<const int64_t> tokens) const {
  std::vector<int32_t> slots;
  for (const int64_t t : tokens) slots.push_back(step.slots[size_t(t)]);
  return make_step(slots, tokens);
}

std::vector<Stretch> CaseData::covered(const StepData& of) const {
  std::vector<Stretch> out;
  const Extents& strides = output(of).strides();
  const int64_t k = shape.experts_per_token;
  for (int64_t row = 0; row < of.num_tokens() * k; ++row) {
    const int32_t slot = of.active_slot(row / k);
    const int32_t expert = shape.has_experts() ? of.experts[size_t(row)] : 0;
    if (slot < 0 || expert < 0) continue;
    int64_t column = shape.offset_start;
    for (int32_t i = 0; i < int32_t(slices.size()); ++i) {
      const int32_t r = rank(size_t(i), slot, expert);
      const int64_t width = shape.num_out[size_t(i)];
      if (r > 0 && shape.shrinks()) {
        out.push_back({row, i, slot, expert, 0, r, i * strides[0] + row * strides[1]});
      } else if (r > 0) {
        out.push_back({row, i, slot, expert, column, width, row * strides[0] + column});
      }
      column += width;
    }
  }
  return out;
}

Tensor& CaseData::output(StepData& of) const { return shape.shrinks() ? *of.h : *of.y; }
const Tensor& CaseData::output(const StepData& of) const { return shape.shrinks() ? *of.h : *of.y; }

namespace {

// The bytes that slot `s` has in a tensor [L, ...].
std::span<std::byte> slot_bytes(Tensor& t, int64_t s) {
  const int64_t stride = t.strides()[0] * int64_t(size_bytes(t.dtype()));
  const int64_t begin = s * stride;
  const int64_t end = std::min<int64_t>(begin + stride, int64_t(t.bytes().size()));
  return {t.bytes().data() + begin, size_t(end - begin)};
}

template <typename Change>
void for_each_tensor(CaseData& data, Change&& change) {
  for (SliceData& slice : data.slices) {
    for (std::optional<Tensor>* t : {&slice.a, &slice.b, &slice.a_scale, &slice.b_scale}) {
      if (*t) change(**t);
    }
  }
  if (data.stacked_a) change(*data.stacked_a), change(*data.stacked_b);
}

void copy_bytes(std::span<const std::byte> from, std::span<std::byte> to) {
  std::memcpy(to.data(), from.data(), std::min(from.size(), to.size()));
}

}  // namespace

void copy_slot(const CaseData& from, CaseData& to, int64_t slot) {
  CaseData source = from;
  std::vector<Tensor*> sources;
  for_each_tensor(source, [&](Tensor& t) { sources.push_back(&t); });
  size_t i = 0;
  for_each_tensor(to, [&](Tensor& t) {
    copy_bytes(slot_bytes(*sources[i], slot), slot_bytes(t, slot));
    ++i;
  });
  const int64_t num_experts = to.shape.num_experts;
  for (size_t slice = 0; slice < to.slices.size(); ++slice) {
    for (int64_t pair = slot * num_experts; pair < (slot + 1) * num_experts; ++pair) {
      to.slices[slice].ranks[size_t(pair)] = from.slices[slice].ranks[size_t(pair)];
      to.slices[slice].scalings[size_t(pair)] = from.slices[slice].scalings[size_t(pair)];
    }
  }
}

void move_slots(CaseData& data, std::span<const int64_t> to) {
  for_each_tensor(data, [&](Tensor& t) {
    Tensor from = t;
    for (size_t s = 0; s < to.size(); ++s) {
      copy_bytes(slot_bytes(from, int64_t(s)), slot_bytes(t, to[s]));
    }
  });
  const auto num_experts = size_t(data.shape.num_experts);
  for (SliceData& slice : data.slices) {
    const SliceData from{{}, {}, {}, {}, slice.ranks, slice.scalings};
    for (size_t pair = 0; pair < slice.ranks.size(); ++pair) {
      const size_t target = size_t(to[pair / num_experts]) * num_experts + pair % num_experts;
      slice.ranks[target] = from.ranks[pair];
      slice.scalings[target] = from.scalings[pair];
    }
  }
}

std::vector<int32_t> draw_slots(Mapping mapping, int64_t num_slots, int64_t num_tokens,
                                uint64_t seed) {
  const auto count = uint64_t(num_slots);
  const std::vector<double> sums = zipf_sums(num_slots);
  const bool has_base_tokens = mapping == Mapping::uniform || mapping == Mapping::zipf;
  std::vector<int32_t> slots;
  for (uint64_t t = 0; t < uint64_t(num_tokens); ++t) {
    const uint64_t bits = random_bits(seed, kSlots, t);
    auto slot = int32_t(bits % count);
    if (mapping == Mapping::identical) slot = int32_t(seed % count);
    if (mapping == Mapping::distinct) slot = int32_t((t * 7919 + seed % 1000) % count);
    if (mapping == Mapping::zipf) {
      const double at = double(bits % (1 << 20)) * 0x1p-20 * sums.back();
      slot = int32_t(std::upper_bound(sums.begin(), sums.end(), at) - sums.begin());
    }
    const bool is_base = mapping == Mapping::base || (has_base_tokens && (bits >> 40) % 6 == 0);
    slots.push_back(is_base ? -1 : slot);
  }
  return slots;
}

std::vector<int64_t> shuffled(int64_t size, uint64_t seed) {
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  Draw draw(seed);
  for (int64_t i = size - 1; i > 0; --i) std::swap(order[size_t(i)], order[size_t(draw(i + 1))]);
  return order;
}

}  // namespace loratory::check
