#include "reference/lora/row_arithmetic.hpp"

#include <vector>

#include "reference/numerics/panels.hpp"
#include "reference/numerics/rows.hpp"

namespace loratory::reference {
namespace {

// Rows of y, or of x, that are worked on together.
constexpr size_t kRowsAtOnce = 8;

std::span<float> nth(std::vector<float>& rows, size_t n, int64_t size) {
  return std::span(rows).subspan(n * size_t(size), size_t(size));
}

}  // namespace

void shrink_rows(const ShrinkRows& slice, std::span<const int32_t> rows) {
  const int64_t num_in = slice.x.size(1);
  const Panels a = read_panels(slice.a, slice.rank, num_in);
  const int64_t padded_rank = a.num_panels() * Panels::kRows;
  std::vector<float> x(kRowsAtOnce * size_t(num_in)), h(kRowsAtOnce * size_t(padded_rank));
  for (size_t begin = 0; begin < rows.size(); begin += kRowsAtOnce) {
    const auto here = rows.subspan(begin, std::min(kRowsAtOnce, rows.size() - begin));
    for (size_t i = 0; i < here.size(); ++i) read_row(slice.x, here[i], 0, nth(x, i, num_in));
    multiply_in_order(a, x.data(), int64_t(here.size()), h.data());
    for (size_t i = 0; i < here.size(); ++i) {
      write_row(slice.h, here[i], 0, nth(h, i, padded_rank).first(size_t(slice.rank)));
    }
  }
}

namespace {

// B as the mode multiplies it: folded, and twice side by side for split2.
Panels prepare_b(const ExpandRows& slice) {
  Panels b = read_panels(slice.b, slice.b.size(0), slice.rank);
  if (slice.mode.scale == ScaleMode::folded_b) {
    for (float& v : b.values()) {  // the product is exact in double
      v = float(round_to(slice.b.dtype, double(v) * double(slice.scaling)));
    }
  }
  return slice.mode.h == IntermediateMode::split2 ? side_by_side_twice(b) : b;
}

// The terms of one row that meet the columns of prepare_b().
void read_terms(const ExpandRows& slice, int64_t row, std::span<float> terms) {
  const std::span<float> h = terms.first(size_t(slice.rank));
  read_row(slice.h, row, 0, h);
  if (slice.mode.h == IntermediateMode::cast_to_weight) round_elements(slice.b.dtype, h);
  if (slice.mode.h != IntermediateMode::split2) return;
  const std::span<float> lo = terms.last(size_t(slice.rank));
  std::ranges::copy(h, lo.begin());
  round_elements(slice.b.dtype, h);
  for (size_t j = 0; j < h.size(); ++j) lo[j] -= h[j];
  round_elements(slice.b.dtype, lo);
}

// The last roundings of one row, whose columns are `sums`; `base` is room of the same size.
void finish(const ExpandRows& slice, int64_t row, std::span<float> sums, std::span<float> base) {
  if (slice.mode.scale == ScaleMode::accumulator) {
    for (float& d : sums) d *= slice.scaling;
  }
  if (slice.mode.sum == SumMode::two_round) {
    const bool as_weight = slice.mode.h == IntermediateMode::cast_to_weight;
    round_elements(as_weight ? slice.b.dtype : slice.y.dtype, sums);
  }
  if (slice.add_inputs) {
    read_row(slice.y, row, slice.offset, base);
    for (size_t n = 0; n < sums.size(); ++n) sums[n] = base[n] + sums[n];
  }
  write_row(slice.y, row, slice.offset, sums);
}

}  // namespace

void expand_rows(const ExpandRows& slice, std::span<const int32_t> rows) {
  const Panels b = prepare_b(slice);
  const int64_t num_terms = b.num_columns(), padded_out = b.num_panels() * Panels::kRows;
  const auto num_out = size_t(slice.b.size(0));
  std::vector<float> terms(kRowsAtOnce * size_t(num_terms));
  std::vector<float> sums(kRowsAtOnce * size_t(padded_out)), base(num_out);
  for (size_t begin = 0; begin < rows.size(); begin += kRowsAtOnce) {
    const auto here = rows.subspan(begin, std::min(kRowsAtOnce, rows.size() - begin));
    for (size_t i = 0; i < here.size(); ++i) read_terms(slice, here[i], nth(terms, i, num_terms));
    multiply_in_order(b, terms.data(), int64_t(here.size()), sums.data());
    for (size_t i = 0; i < here.size(); ++i) {
      finish(slice, here[i], nth(sums, i, padded_out).first(num_out), base);
    }
  }
}

void add_bias_rows(const ConstTensorView& bias, int64_t offset, std::span<const int32_t> rows,
                   const TensorView& y) {
  for (const int32_t t : rows) {
    for (int64_t n = 0; n < bias.size(0); ++n) {
      y.set(float(y.get(t, offset + n)) + float(bias.get(n)), t, offset + n);
    }
  }
}

}  // namespace loratory::reference
