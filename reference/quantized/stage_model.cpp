#include "reference/quantized/stage_model.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "reference/layout/batch_layout.hpp"
#include "reference/quantized/check_quantized.hpp"
#include "reference/quantized/oracle.hpp"

namespace loratory::reference {
namespace {

double squared(double v) { return v * v; }

// Numbers of one tensor times their factors, exact in float64, and the largest factor.
struct Dequantised {
  std::vector<double> numbers;
  double largest_factor = 1;
};

// [rows][columns] of the weights as [columns][rows].
Dequantised weights_by_column(const ConstTensorView& bits, const ConstTensorView& scale,
                              int64_t num_rows, int64_t num_columns, const BlockSize& block) {
  Dequantised out{std::vector<double>(size_t(num_rows * num_columns)), 0};
  for (int64_t n = 0; n < num_rows; ++n) {
    for (int64_t c = 0; c < num_columns; ++c) {
      const double factor = scale.num_axes() == 2   ? scale.get(n / block.n, c / block.k)
                            : scale.num_axes() == 1 ? scale.get(n)
                                                    : scale.get();
      out.numbers[size_t(c * num_rows + n)] = bits.get(n, c) * factor;
      out.largest_factor = std::max(out.largest_factor, std::fabs(factor));
    }
  }
  return out;
}

Dequantised activations(const ConstTensorView& bits, const std::optional<ConstTensorView>& scale,
                        int64_t t, int64_t num_columns, const BlockSize& block) {
  Dequantised out;
  for (int64_t c = 0; c < num_columns; ++c) {
    double factor = 1;
    if (scale) {
      factor = scale->num_axes() == 0 ? scale->get() : scale->get(t, block.k > 0 ? c / block.k : 0);
    }
    out.numbers.push_back(bits.get(t, c) * factor);
    out.largest_factor = std::max(out.largest_factor, std::fabs(factor));
  }
  return out;
}

// One sum of a stage, before it is scaled.
struct RandomSum {
  double value = 0;
  double mean = 0;      // of the error, with its sign
  double vanished = 0;  // products and sums below the normal range
  double variance = 0;
  double operands = 0;  // a deviation that all sums may have the same way
};

// Four roundings of factors, of the sum or of its terms; products that vanish.
std::vector<RandomSum> sums_of(const Dequantised& left, const Dequantised& right, int64_t width,
                               int64_t terms_per_number, double s, const Arithmetic& a) {
  const SumFacts facts =
      sums_of_products(left.numbers, std::span<const double>(right.numbers), width);
  const int64_t num_terms = terms_per_number * facts.num_terms;
  const double vanished =
      lost_below_normal(a) * (1 + std::fabs(s) * double(num_terms) * (1 + right.largest_factor) *
                                      (1 + left.largest_factor));
  std::vector<RandomSum> out;
  for (int64_t n = 0; n < width; ++n) {
    const auto at = size_t(n);
    const double sum = facts.sum[at], squares = facts.squares[at];
    const RandomError error = sum_error(facts, n, num_terms, accumulators_of(a));
    const double factors = 0x1p-22 * 0x1p-22 * (sum * sum + squares);
    out.push_back({.value = sum,
                   .mean = error.mean,
                   .vanished = vanished,
                   .variance = error.variance + factors,
                   .operands = a.operand_rounding * (std::fabs(sum) + std::sqrt(squares))});
  }
  return out;
}

std::vector<DeltaModel> of_row(const Dequantised& left, const Dequantised& right, int64_t width,
                               int64_t terms_per_number, double s, const Arithmetic& a) {
  std::vector<DeltaModel> out;
  for (const RandomSum& sum : sums_of(left, right, width, terms_per_number, s, a)) {
    out.push_back({.base = 0,
                   .delta = s * sum.value,
                   .mean = std::fabs(s * sum.mean) + sum.vanished,
                   .deviation = std::fabs(s) * std::sqrt(sum.variance + squared(sum.operands))});
  }
  return out;
}

}  // namespace

DeltaModels stage_models(const QuantizedShrinkArgs& args, const Arithmetic& arithmetic) {
  const int64_t num_tokens = args.x.size(0), num_in = args.x.size(1), width = args.h.size(2);
  DeltaModels out{width, {}, {}};
  out.elements.resize(args.slices.size() * size_t(num_tokens * width));
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const QuantizedShrinkSlice& slice = args.slices[i];
    for (int64_t t = 0; t < num_tokens; ++t) {
      const int32_t slot = args.slots[size_t(t)];
      const int64_t rank = slot == kBaseSlot ? 0 : slice.ranks[size_t(slot)];
      out.groups.push_back(t);
      if (rank == 0) continue;
      const auto row =
          of_row(activations(args.x, args.x_scale, t, num_in, args.block),
                 weights_by_column(slice.a[slot], slice.a_scale[slot], rank, num_in, args.block),
                 rank, 1, 1, arithmetic);
      std::ranges::copy(row, out.elements.begin() + (int64_t(i) * num_tokens + t) * width);
    }
  }
  return out;
}

DeltaModels stage_models(const QuantizedExpandArgs& args, const Arithmetic& arithmetic,
                         bool split_h) {
  const int64_t num_tokens = args.y.size(0), width = args.y.size(1);
  DeltaModels out{width, {}, {}};
  out.elements.resize(size_t(num_tokens * width));
  for (int64_t t = 0; t < num_tokens; ++t) out.groups.push_back(t);
  int64_t offset = args.offset_start;
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const QuantizedExpandSlice& slice = args.slices[i];
    const auto index = int64_t(i);
    std::optional<ConstTensorView> h_scale;
    if (args.h_scale) h_scale = (*args.h_scale)[index];
    for (int64_t t = 0; t < num_tokens; ++t) {
      const int32_t slot = args.slots[size_t(t)];
      const int64_t rank = slot == kBaseSlot ? 0 : slice.ranks[size_t(slot)];
      if (rank == 0) continue;
      auto row = of_row(
          activations(args.h[index], h_scale, t, rank, args.block),
          weights_by_column(slice.b[slot], slice.b_scale[slot], slice.b.size(1), rank, args.block),
          slice.b.size(1), split_h ? 2 : 1, slice.scalings[size_t(slot)], arithmetic);
      for (size_t n = 0; n < row.size(); ++n) {
        const int64_t column = offset + int64_t(n);
        if (args.add_inputs) row[n].base = args.y.get(t, column);
        out.elements[size_t(t * width + column)] = row[n];
      }
    }
    offset += slice.b.size(1);
  }
  return out;
}

// --- both stages ------------------------------------------------------------------------------

namespace {

// Roundings that happen with less than exp(-z²/2) are left out; of means of several h, by how much
// of the largest they may differ: as in lora/delta_model.cpp.
constexpr double kNeverCrossed = 8, kSpreadOfMeans = 0.25;

// Numbers under one factor: which factor, and how far it is off, relative.
struct RandomFactor {
  double value = 1, mean = 0, variance = 0;
  bool is_known = true;  // false: absmax is as small as what it may be off by
};

// h of one slice and row, and for each number the factor that it shares.
struct RandomRow {
  std::vector<RandomSum> h;
  std::vector<size_t> group;
};

struct RandomH {
  std::vector<RandomRow> rows;  // [T]; empty where not covered
  std::vector<RandomFactor> factors;
};

// The largest number's own error. Where several may be the largest, that of all of them.
RandomFactor factor_of(const std::vector<const RandomSum*>& numbers, Dtype dtype) {
  double absmax = 0, reach = 0;
  const auto reach_of = [](const RandomSum& h) {
    return std::fabs(h.mean) + h.vanished + h.operands + kNeverCrossed * std::sqrt(h.variance);
  };
  for (const RandomSum* h : numbers) {
    absmax = std::max(absmax, std::fabs(h->value)), reach = std::max(reach, reach_of(*h));
  }
  RandomFactor out;
  if (absmax == 0 && reach <= double(numbers.size()) * 0x1p-100) return out;
  if (absmax < 4 * reach) return {.is_known = false};
  int num_candidates = 0;
  double mean = 0, variance = 0;
  for (const RandomSum* h : numbers) {
    if (std::fabs(h->value) + 2 * reach < absmax) continue;
    ++num_candidates;
    mean = std::max(mean, std::fabs(h->mean) + h->vanished);
    variance += h->variance + squared(h->operands);
  }
  if (num_candidates > 1) mean += std::sqrt(variance);  // of the largest of several
  out.value = std::max(absmax / largest_finite(dtype), 0x1p-126);
  out.mean = mean / absmax;
  out.variance = variance / squared(absmax) + squared(0x1p-23);
  return out;
}

// A number goes to the other side of a tie with exp(-z²/2) or less; what it was off by is gone with
// the rounding, but for the mean.
void quantise(RandomSum& h, const RandomFactor& factor, Dtype dtype) {
  const double quotient = h.value / factor.value;
  const double variance = (h.variance + squared(h.operands)) / squared(factor.value) +
                          squared(quotient) * (factor.variance + squared(0x1p-22));
  const double mean =
      (std::fabs(h.mean) + h.vanished) / factor.value + std::fabs(quotient) * factor.mean;
  const double nearest = round_to(dtype, quotient, Overflow::saturate);
  const double half =
      quotient == 0
          ? underflow_unit(dtype)
          : std::max(std::ldexp(unit_roundoff(dtype), std::ilogb(quotient)), underflow_unit(dtype));
  const double beyond = std::max(0.0, half - std::fabs(quotient - nearest) - mean);
  const double deviation = std::sqrt(variance);
  h.value = nearest * factor.value;
  h.operands = 0;
  h.variance = 0;
  if (beyond > kNeverCrossed * deviation) return;
  const double z = deviation == 0 ? 0 : beyond / deviation;
  const bool is_wide = mean + deviation > 2 * half;
  h.variance =
      squared(factor.value) * ((is_wide ? variance : 0) + squared(2 * half) / (1 + squared(z)));
}

size_t group_of(const QuantizedLinearArgs& args, int64_t t, int64_t j, int64_t width) {
  if (args.b_block.k > 0) return size_t(t * num_groups(width, args.b_block.k) + j / args.b_block.k);
  return args.x_scale && args.x_scale->num_axes() == 0 ? 0 : size_t(t);
}

RandomH random_h(const QuantizedLinearArgs& args, const QuantizedSlice& slice,
                 const Arithmetic& arithmetic) {
  const auto num_tokens = int64_t(args.slots.size());
  const int64_t num_in = args.x.size(1);
  RandomH out{std::vector<RandomRow>(size_t(num_tokens)), {}};
  std::vector<std::vector<const RandomSum*>> shared;
  for (int64_t t = 0; t < num_tokens; ++t) {
    const int32_t slot = args.slots[size_t(t)];
    const int64_t rank = slot == kBaseSlot ? 0 : slice.ranks[size_t(slot)];
    if (rank == 0) continue;
    RandomRow& row = out.rows[size_t(t)];
    row.h =
        sums_of(activations(args.x, args.x_scale, t, num_in, args.a_block),
                weights_by_column(slice.a[slot], slice.a_scale[slot], rank, num_in, args.a_block),
                rank, 1, 1, arithmetic);
    for (int64_t j = 0; j < rank; ++j) {
      row.group.push_back(group_of(args, t, j, slice.a.size(1)));
      shared.resize(std::max(shared.size(), row.group.back() + 1));
      shared[row.group.back()].push_back(&row.h[size_t(j)]);
    }
  }
  if (!is_quantized(args.x.dtype)) return out;
  for (const auto& numbers : shared) out.factors.push_back(factor_of(numbers, args.x.dtype));
  for (RandomRow& row : out.rows) {
    for (size_t j = 0; j < row.h.size(); ++j) {
      quantise(row.h[j], out.factors[row.group[j]], args.x.dtype);
    }
  }
  return out;
}

// What the errors of h make of one column: b_j is scaling · B_nj.
void add_errors_of_h(const RandomRow& row, const std::vector<RandomFactor>& factors,
                     const std::vector<double>& b, DeltaModel& model) {
  double mean = 0, variance = 0, operands = 0, vanished = 0;
  std::map<size_t, double> delta_of_factor;
  for (size_t j = 0; j < b.size(); ++j) {
    const RandomSum& h = row.h[j];
    mean += b[j] * h.mean;
    vanished += std::fabs(b[j]) * h.vanished, operands += std::fabs(b[j]) * h.operands;
    variance += squared(b[j]) * (h.variance + squared(kSpreadOfMeans * h.mean));
    delta_of_factor[row.group[j]] += b[j] * h.value;
  }
  for (const auto& [group, delta] : delta_of_factor) {
    if (factors.empty()) break;
    vanished += std::fabs(delta) * factors[group].mean;
    variance += squared(delta) * factors[group].variance;
  }
  model.mean += std::fabs(mean) + vanished;
  model.deviation = std::sqrt(squared(model.deviation) + variance) + operands;
}

std::vector<DeltaModel> of_linear_row(const QuantizedLinearArgs& args, const QuantizedSlice& slice,
                                      const RandomH& h, int64_t t, bool split_h,
                                      const Arithmetic& a) {
  const int32_t slot = args.slots[size_t(t)];
  const RandomRow& row = h.rows[size_t(t)];
  const double s = slice.scalings[size_t(slot)];
  const auto rank = int64_t(row.h.size());
  const int64_t width = slice.b.size(1);
  Dequantised left;
  for (size_t j = 0; j < row.h.size(); ++j) {
    left.numbers.push_back(row.h[j].value);
    if (!h.factors.empty()) {
      left.largest_factor = std::max(left.largest_factor, h.factors[row.group[j]].value);
    }
  }
  const Dequantised b =
      weights_by_column(slice.b[slot], slice.b_scale[slot], width, rank, args.b_block);
  std::vector<DeltaModel> out = of_row(left, b, width, split_h ? 2 : 1, s, a);
  std::vector<double> column(row.h.size());
  for (size_t n = 0; n < out.size(); ++n) {
    for (size_t j = 0; j < column.size(); ++j) {
      column[j] = s * b.numbers[j * size_t(width) + n];
    }
    add_errors_of_h(row, h.factors, column, out[n]);
  }
  return out;
}

bool is_known(const RandomH& h, const RandomRow& row) {
  return std::ranges::all_of(row.group,
                             [&](size_t g) { return h.factors.empty() || h.factors[g].is_known; });
}

}  // namespace

DeltaModels stage_models(const QuantizedLinearArgs& args, const Arithmetic& arithmetic,
                         bool split_h) {
  const int64_t num_tokens = args.y.size(0), width = args.y.size(1);
  const bool by_tensor = args.x_scale && args.x_scale->num_axes() == 0;
  DeltaModels out{width, {}, {}};
  out.elements.resize(size_t(num_tokens * width));
  for (int64_t t = 0; t < num_tokens; ++t) out.groups.push_back(by_tensor ? 0 : t);
  Arithmetic of_expand = arithmetic;
  if (split_h) of_expand.operand_rounding += kSplitOfH;
  int64_t offset = args.offset_start;
  for (const QuantizedSlice& slice : args.slices) {
    const RandomH h = random_h(args, slice, arithmetic);
    for (int64_t t = 0; t < num_tokens; ++t) {
      const RandomRow& row = h.rows[size_t(t)];
      if (row.h.empty() || !is_known(h, row)) continue;
      std::vector<DeltaModel> models = of_linear_row(args, slice, h, t, split_h, of_expand);
      for (size_t n = 0; n < models.size(); ++n) {
        const int64_t column = offset + int64_t(n);
        if (args.add_inputs) models[n].base = args.y.get(t, column);
        out.elements[size_t(t * width + column)] = models[n];
      }
    }
    offset += slice.b.size(1);
  }
  return out;
}

}  // namespace loratory::reference
