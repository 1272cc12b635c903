#include "reference/quantized/stage_model.hpp"

#include <algorithm>
#include <cmath>

#include "reference/layout/batch_layout.hpp"

namespace loratory::reference {
namespace {

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

// Four roundings of factors, of the sum or of its terms; products that vanish.
std::vector<DeltaModel> of_row(const Dequantised& left, const Dequantised& right, int64_t width,
                               int64_t terms_per_number, double s, const Arithmetic& a) {
  const SumFacts facts =
      sums_of_products(left.numbers, std::span<const double>(right.numbers), width);
  const int64_t num_terms = terms_per_number * facts.num_terms;
  const double vanished = (a.flushes_subnormals ? 0x1p-125 : 0x1p-149) *
                          (1 + std::fabs(s) * double(num_terms) * (1 + right.largest_factor) *
                                   (1 + left.largest_factor));
  std::vector<DeltaModel> out;
  for (int64_t n = 0; n < width; ++n) {
    const auto at = size_t(n);
    const double sum = facts.sum[at], squares = facts.squares[at];
    const RandomError error = sum_error(facts, n, num_terms, accumulators_of(a));
    const double factors = 0x1p-22 * 0x1p-22 * (sum * sum + squares);
    const double operands = a.operand_rounding * (std::fabs(sum) + std::sqrt(squares));
    out.push_back(
        {.base = 0,
         .delta = s * sum,
         .mean = std::fabs(s * error.mean) + vanished,
         .deviation = std::fabs(s) * std::sqrt(error.variance + factors + operands * operands)});
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

}  // namespace loratory::reference
