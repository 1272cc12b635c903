#include "reference/lora/oracle.hpp"

#include <cmath>

#include "reference/layout/batch_layout.hpp"
#include "reference/lora/check_args.hpp"
#include "reference/numerics/matrix.hpp"

namespace loratory::reference {
namespace {

// h* of one token and slice, and the sums of the absolute values of its products.
struct ExactH {
  Vector<double> h, sum_xa;
  int64_t num_in;
};

ExactH exact_shrink(const ConstTensorView& x_t, const ConstTensorView& a, int64_t rank) {
  const int64_t num_in = x_t.size(0);
  const auto a_s = read_matrix<double>(a, rank, num_in);
  const auto x = read_vector<double>(x_t, num_in);
  return {multiply_in_order(a_s, x), multiply_in_order<double>(a_s.cwiseAbs(), x.cwiseAbs()),
          num_in};
}

ExactH given_h(const Vector<double>& h) { return {h, h.cwiseAbs(), 0}; }

ExactH exact_column(const ConstTensorView& a, int64_t column, int64_t rank) {
  Vector<double> h(rank);
  for (int64_t j = 0; j < rank; ++j) h(j) = a.get(j, column);
  return given_h(h);
}

void add_slice(const ExactH& exact, const ExpandSlice& slice, int32_t slot, int64_t row,
               int64_t offset, const ConstTensorView* base, Oracle& oracle) {
  const auto b = read_matrix<double>(slice.b[slot], slice.b.size(1), slice.ranks[slot]);
  const Matrix<double> abs_b = b.cwiseAbs();
  const double scaling = slice.scalings[slot];
  const Vector<double> sum = multiply_in_order(b, exact.h);
  for (int64_t n = 0; n < b.rows(); ++n) {
    const auto b_n = abs_b.row(n);
    oracle.elements[size_t(row * oracle.num_columns + offset + n)] =
        DeltaFacts{.base = base == nullptr ? 0 : base->get(row, offset + n),
                   .delta = scaling * sum(n),
                   .scaling = scaling,
                   .num_in = exact.num_in,
                   .rank = slice.ranks[slot],
                   .sum_b_h = b_n.dot(exact.h.cwiseAbs()),
                   .sum_b_xa = b_n.dot(exact.sum_xa),
                   .sum_b = b_n.sum(),
                   .sum_h = exact.h.cwiseAbs().sum(),
                   .sum_xa = exact.sum_xa.sum()};
  }
}

Oracle empty_oracle(const ConstTensorView& y) {
  return {y.size(1), std::vector<std::optional<DeltaFacts>>(size_t(y.size(0) * y.size(1)))};
}

// Of one slice. `h_of` gives the exact h of a row, its slot and its rank.
template <typename HOf>
void add_rows(const ExpandSlice& slice, std::span<const int32_t> slots, int64_t offset,
              const ConstTensorView* base, const HOf& h_of, Oracle& oracle) {
  for (size_t t = 0; t < slots.size(); ++t) {
    const int32_t slot = slots[t];
    if (slot == kBaseSlot || slice.ranks[slot] == 0) continue;
    const auto row = int64_t(t);
    add_slice(h_of(row, slot, slice.ranks[slot]), slice, slot, row, offset, base, oracle);
  }
}

}  // namespace

Oracle linear_oracle(const LinearArgs& args) {
  check_linear(args);
  Oracle oracle = empty_oracle(args.y);
  const ConstTensorView base = args.y;
  int64_t offset = args.offset_start;
  for (const LoraSlice& slice : args.slices) {
    const auto h_of = [&](int64_t row, int32_t slot, int32_t rank) {
      return exact_shrink(args.x[row], slice.a[slot], rank);
    };
    add_rows({slice.b, slice.ranks, slice.scalings}, args.slots, offset,
             args.add_inputs ? &base : nullptr, h_of, oracle);
    offset += slice.b.size(1);
  }
  return oracle;
}

Oracle expand_oracle(const ExpandArgs& args) {
  check_expand(args);
  Oracle oracle = empty_oracle(args.y);
  const ConstTensorView base = args.y;
  int64_t offset = args.offset_start;
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const auto h_of = [&](int64_t row, int32_t, int32_t rank) {
      return given_h(read_vector<double>(args.h[int64_t(i)][row], rank));
    };
    add_rows(args.slices[i], args.slots, offset, args.add_inputs ? &base : nullptr, h_of, oracle);
    offset += args.slices[i].b.size(1);
  }
  return oracle;
}

Oracle embedding_oracle(const EmbeddingArgs& args) {
  check_embedding(args);
  Oracle oracle = empty_oracle(args.y);
  const ConstTensorView base = args.y;
  const LoraSlice& slice = args.slice;
  const auto h_of = [&](int64_t row, int32_t slot, int32_t rank) {
    return exact_column(slice.a[slot], args.token_ids[size_t(row)], rank);
  };
  add_rows({slice.b, slice.ranks, slice.scalings}, args.slots, 0, &base, h_of, oracle);
  return oracle;
}

Arithmetic arithmetic_of(const LinearArgs& args) {
  const Dtype weight = args.slices.empty() ? args.x.dtype : args.slices[0].b.dtype;
  return {.mode = args.mode, .h = args.x.dtype, .weight = weight, .out = args.y.dtype};
}

Arithmetic arithmetic_of(const EmbeddingArgs& args) {
  const Dtype weight = args.slice.b.dtype;
  Arithmetic arithmetic{.mode = args.mode, .h = weight, .weight = weight, .out = args.y.dtype};
  // A cast or split of h loses nothing; cast_to_weight still says what delta is rounded to.
  if (args.mode.h == IntermediateMode::split2) arithmetic.mode.h = IntermediateMode::fp32;
  return arithmetic;
}

}  // namespace loratory::reference
