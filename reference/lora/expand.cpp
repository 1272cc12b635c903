#include <string>

#include "reference/base/input_error.hpp"
#include "reference/layout/partition.hpp"
#include "reference/lora/check_args.hpp"
#include "reference/lora/linear.hpp"
#include "reference/numerics/matrix.hpp"

namespace loratory::reference {
namespace {

int64_t max_loras(const ExpandArgs& args) {
  return args.slices.empty() ? 0 : int64_t(args.slices[0].ranks.size());
}

}  // namespace

void check_expand(const ExpandArgs& args) {
  const auto num_tokens = int64_t(args.slots.size());
  check_shape("expand: h", args.h, {int64_t(args.slices.size()), num_tokens, kAnySize});
  check_wide_dtype("expand: h", args.h.dtype);
  check_shape("expand: y", args.y, {num_tokens, kAnySize});
  check_wide_dtype("expand: y", args.y.dtype);
  if (args.offset_start < 0) throw InputError("expand: offset_start", "is negative");
  int64_t end = args.offset_start;
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const ExpandSlice& slice = args.slices[i];
    const std::string place = "expand: slices[" + std::to_string(i) + "]";
    check_shape(place + ".b", slice.b, {max_loras(args), kAnySize, kAnySize});
    check_wide_dtype(place + ".b", slice.b.dtype);
    check_ranks(place + ".ranks", slice.ranks, max_loras(args),
                std::min(slice.b.size(2), args.h.size(2)));
    check_scalings(place + ".scalings", slice.scalings, max_loras(args));
    end += slice.b.size(1);
  }
  if (end > args.y.size(1)) {
    throw InputError("expand: y", "has " + std::to_string(args.y.size(1)) +
                                      " columns, the slices end at " + std::to_string(end));
  }
  check_slots(args.slots, int32_t(max_loras(args)));
}

namespace {

/// B of one slot and slice as the mode multiplies it: folded, and twice side by side for split2.
struct PreparedB {
  Matrix<float> b;    // [N, num_terms]
  float scaling = 1;  // of the accumulator
  Dtype dtype = Dtype::f32;
};

PreparedB prepare(const ExpandSlice& slice, int32_t slot, const NumericMode& mode) {
  PreparedB prepared{read_matrix<float>(slice.b[slot], slice.b.size(1), slice.ranks[slot]),
                     slice.scalings[slot], slice.b.dtype};
  if (mode.scale == ScaleMode::folded_b) {
    prepared.b = prepared.b.unaryExpr([&](float b) {  // the product is exact in double
      return float(round_to(slice.b.dtype, double(b) * double(slice.scalings[slot])));
    });
    prepared.scaling = 1;
  }
  if (mode.h == IntermediateMode::split2) {
    prepared.b = prepared.b.replicate(1, 2).eval();
  }
  return prepared;
}

// The terms that meet the columns of PreparedB::b.
Vector<float> h_terms(const Vector<float>& h, Dtype weight_dtype, IntermediateMode mode) {
  const auto rounded = [&](float v) { return float(round_to(weight_dtype, v)); };
  switch (mode) {
    case IntermediateMode::cast_to_weight:
      return h.unaryExpr(rounded);
    case IntermediateMode::split2: {
      Vector<float> terms(2 * h.size());
      const Vector<float> hi = h.unaryExpr(rounded);
      terms << hi, (h - hi).unaryExpr(rounded);
      return terms;
    }
    default:
      return h;
  }
}

/// The last roundings of one element.
struct Finish {
  bool add_inputs;
  SumMode sum;
  Dtype delta_dtype;

  void operator()(float d, const TensorView& y, int64_t t, int64_t column) const {
    if (sum == SumMode::two_round) d = float(round_to(delta_dtype, d));
    y.set(add_inputs ? float(y.get(t, column)) + d : d, t, column);
  }
};

void expand_segment(const ConstTensorView& h, const PreparedB& prepared, int64_t rank,
                    const std::vector<int32_t>& tokens, const ExpandArgs& args, int64_t offset) {
  const bool as_weight = args.mode.h == IntermediateMode::cast_to_weight;
  const Finish finish{args.add_inputs, args.mode.sum, as_weight ? prepared.dtype : args.y.dtype};
  const auto num_tokens = int64_t(tokens.size());
#pragma omp parallel for if (num_tokens * prepared.b.size() >= kMinParallelProducts)
  for (int64_t i = 0; i < num_tokens; ++i) {
    const int64_t t = tokens[i];
    const Vector<float> terms =
        h_terms(read_vector<float>(h[t], rank), prepared.dtype, args.mode.h);
    const Vector<float> sum = multiply_in_order(prepared.b, terms);
    const bool scale_here = args.mode.scale == ScaleMode::accumulator;
    for (Eigen::Index n = 0; n < sum.size(); ++n) {
      finish(scale_here ? prepared.scaling * sum(n) : sum(n), args.y, t, offset + n);
    }
  }
}

}  // namespace

void expand(const ExpandArgs& args) {
  check_expand(args);
  const Partition tokens_of = partition(make_batch_layout(args.slots, int32_t(max_loras(args))));
  int64_t offset = args.offset_start;
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const ExpandSlice& slice = args.slices[i];
    for (const auto& [slot, tokens] : tokens_of) {
      if (slice.ranks[slot] == 0) continue;
      expand_segment(args.h[int64_t(i)], prepare(slice, slot, args.mode), slice.ranks[slot], tokens,
                     args, offset);
    }
    offset += slice.b.size(1);
  }
}

}  // namespace loratory::reference
