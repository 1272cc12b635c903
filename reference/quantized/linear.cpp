#include <algorithm>

#include "reference/layout/batch_layout.hpp"
#include "reference/quantized/check_quantized.hpp"
#include "reference/quantized/quantize.hpp"
#include "reference/quantized/quantized_linear.hpp"

namespace loratory::reference {
namespace {

// h in the form of x: 8-bit, with factors.
struct QuantizedH {
  Tensor bits, scale;
};

Extents h_scale_shape(const QuantizedLinearArgs& args, const Extents& h) {
  if (args.b_block.k > 0) return {h[0], h[1], num_groups(h[2], args.b_block.k)};
  if (args.x_scale->num_axes() == 0) return {h[0]};
  return {h[0], h[1], 1};
}

// Covered numbers only: the rank of each token's slot.
std::vector<int32_t> ranks_of_tokens(const QuantizedLinearArgs& args, const QuantizedSlice& slice) {
  std::vector<int32_t> ranks;
  for (const int32_t slot : args.slots) {
    ranks.push_back(slot == kBaseSlot ? 0 : slice.ranks[size_t(slot)]);
  }
  return ranks;
}

QuantizedH quantize_h(const QuantizedLinearArgs& args, const Tensor& h) {
  QuantizedH out{Tensor(args.x.dtype, h.shape()),
                 Tensor(Dtype::f32, h_scale_shape(args, h.shape()))};
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const auto slice = int64_t(i);
    const std::vector<int32_t> widths = ranks_of_tokens(args, args.slices[i]);
    quantize({.v = h.view()[slice],
              .widths = widths,
              .group_k = args.b_block.k,
              .bits = out.bits.view()[slice],
              .scale = out.scale.view()[slice]});
  }
  return out;
}

}  // namespace

void lora_linear_quantized(const QuantizedLinearArgs& args) {
  QuantizedShrinkArgs down{.x = args.x,
                           .x_scale = args.x_scale,
                           .slots = args.slots,
                           .slices = {},
                           .block = args.a_block,
                           .h = {}};
  QuantizedExpandArgs up{.h = {},
                         .h_scale = std::nullopt,
                         .slots = args.slots,
                         .slices = {},
                         .block = args.b_block,
                         .offset_start = args.offset_start,
                         .add_inputs = args.add_inputs,
                         .sum = args.sum,
                         .y = args.y};
  int64_t max_rank = 0;
  for (const QuantizedSlice& slice : args.slices) {
    if (slice.a.num_axes() == 3) max_rank = std::max(max_rank, slice.a.size(1));
    if (slice.b.num_axes() == 3) max_rank = std::max(max_rank, slice.b.size(2));
    down.slices.push_back({slice.a, slice.a_scale, slice.ranks});
    up.slices.push_back({slice.b, slice.b_scale, slice.ranks, slice.scalings});
  }
  Tensor h(Dtype::f32, {int64_t(args.slices.size()), int64_t(args.slots.size()), max_rank});
  down.h = h.view();
  shrink_quantized(down);
  check_block("lora_linear_quantized: b_block", args.b_block);
  if (!is_quantized(args.x.dtype)) {
    up.h = h.view();
    return expand_quantized(up);
  }
  QuantizedH quantized = quantize_h(args, h);
  up.h = quantized.bits.view();
  up.h_scale = quantized.scale.view();
  expand_quantized(up);
}

}  // namespace loratory::reference
