#include "reference/lora/definition.hpp"

#include "reference/layout/batch_layout.hpp"

namespace loratory::reference {
namespace {

// h_j = sum_c A[j, c] · x[c]
float h_of(const LinearArgs& args, const ConstTensorView& x, const ConstTensorView& a, int64_t j) {
  float sum = 0;
  for (int64_t c = 0; c < x.size(0); ++c) sum += float(a.get(j, c)) * float(x.get(c));
  const bool as_x = args.mode.h == IntermediateMode::store_as_x;
  return as_x ? float(round_to(args.x.dtype, sum)) : sum;
}

// What of h_j meets B in round `part` of the sum over j: split2 has a second round, of the rests.
float term(const NumericMode& mode, Dtype weight, float h, int part) {
  if (mode.h == IntermediateMode::fp32 || mode.h == IntermediateMode::store_as_x) return h;
  const auto high = float(round_to(weight, h));
  return part == 0 ? high : float(round_to(weight, h - high));
}

// d = scaling · sum_j B[n, j] · h_j
float delta(const LinearArgs& args, const ConstTensorView& b_n, const std::vector<float>& h,
            float scaling) {
  const bool folded = args.mode.scale == ScaleMode::folded_b;
  float sum = 0;
  for (int part = 0; part < (args.mode.h == IntermediateMode::split2 ? 2 : 1); ++part) {
    for (size_t j = 0; j < h.size(); ++j) {
      const double b = b_n.get(int64_t(j));
      const double weight = folded ? round_to(b_n.dtype, b * double(scaling)) : b;
      sum += float(weight) * term(args.mode, b_n.dtype, h[j], part);
    }
  }
  return folded ? sum : scaling * sum;
}

// y = round(base + d), or round(d) without add_inputs. Two roundings take d as a tensor of its
// own.
void finish(const LinearArgs& args, Dtype weight, int64_t t, int64_t column, float d) {
  const bool as_weight = args.mode.h == IntermediateMode::cast_to_weight;
  const Dtype delta_dtype = as_weight ? weight : args.y.dtype;
  if (args.mode.sum == SumMode::two_round) d = float(round_to(delta_dtype, d));
  args.y.set(args.add_inputs ? float(args.y.get(t, column)) + d : d, t, column);
}

// Row t and the columns of one slice, which begin at o_i.
void add_slice(const LinearArgs& args, const LoraSlice& slice, int64_t t, int64_t o_i) {
  const int32_t s = args.slots[size_t(t)];
  if (s == kBaseSlot || slice.ranks[size_t(s)] == 0) return;  // not covered: never written [1.6]
  std::vector<float> h;
  for (int64_t j = 0; j < slice.ranks[size_t(s)]; ++j) {
    h.push_back(h_of(args, args.x[t], slice.a[s], j));
  }
  for (int64_t n = 0; n < slice.b.size(1); ++n) {
    const int64_t column = o_i + n;
    if (slice.bias) {  // comes first, with a rounding of its own [1.9]
      args.y.set(float(args.y.get(t, column)) + float(slice.bias->get(s, n)), t, column);
    }
    const float d = delta(args, slice.b[s][n], h, slice.scalings[size_t(s)]);
    finish(args, slice.b.dtype, t, column, d);
  }
}

}  // namespace

void lora_linear_definition(const LinearArgs& args) {
  int64_t o_i = args.offset_start;
  for (const LoraSlice& slice : args.slices) {
    for (int64_t t = 0; t < int64_t(args.slots.size()); ++t) add_slice(args, slice, t, o_i);
    o_i += slice.b.size(1);
  }
}

}  // namespace loratory::reference
