#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "reference/layout/partition.hpp"
#include "reference/lora/check_args.hpp"
#include "reference/lora/finish.hpp"
#include "reference/quantized/check_quantized.hpp"
#include "reference/quantized/quantized_linear.hpp"
#include "reference/quantized/scaled_product.hpp"

namespace loratory::reference {
namespace {

void check(const QuantizedExpandArgs& args) {
  const auto num_tokens = int64_t(args.slots.size()), num_slices = int64_t(args.slices.size());
  check_shape("expand_quantized: h", args.h, {num_slices, num_tokens, kAnySize});
  check_block("expand_quantized: block", args.block);
  check_activations("expand_quantized: h", args.h, args.h_scale, {num_slices}, args.block.k);
  int64_t num_columns = 0;
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const QuantizedExpandSlice& slice = args.slices[i];
    const std::string place = fmt::format("expand_quantized: slices[{}]", i);
    check_shape(place + ".b", slice.b, {max_loras(args), kAnySize, kAnySize});
    check_weight(place + ".b", slice.b, slice.b_scale, args.block);
    check_pair(place + ".b", slice.b.dtype, args.h.dtype);
    check_ranks(place + ".ranks", slice.ranks, max_loras(args),
                std::min(slice.b.size(2), args.h.size(2)));
    check_scalings(place + ".scalings", slice.scalings, max_loras(args));
    num_columns += slice.b.size(1);
  }
  check_output("expand_quantized", args.y, num_tokens, args.offset_start, num_columns);
  check_slots(args.slots, int32_t(max_loras(args)));
}

void expand_segment(const QuantizedExpandArgs& args, int64_t slice, const ScaledWeights& b,
                    float scaling, const std::vector<int32_t>& tokens, int64_t offset) {
  const Finish finish{args.add_inputs, args.sum, args.y.dtype};
  const ConstTensorView h = args.h[slice];
  const std::optional<ConstTensorView> h_scale =
      args.h_scale ? std::optional((*args.h_scale)[slice]) : std::nullopt;
  const auto num_tokens = int64_t(tokens.size());
#pragma omp parallel for if (num_tokens * b.num_products() >= kMinParallelProducts)
  for (int64_t i = 0; i < num_tokens; ++i) {
    const Vector<float> sum = multiply_scaled(b, h, h_scale, tokens[i]);
    for (Eigen::Index n = 0; n < sum.size(); ++n) {
      finish(scaling * sum(n), args.y, tokens[i], offset + n);
    }
  }
}

}  // namespace

void expand_quantized(const QuantizedExpandArgs& args) {
  check(args);
  const Partition tokens_of = partition(make_batch_layout(args.slots, int32_t(max_loras(args))));
  int64_t offset = args.offset_start;
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const QuantizedExpandSlice& slice = args.slices[i];
    for (const auto& [slot, tokens] : tokens_of) {
      if (slice.ranks[slot] == 0) continue;
      const ScaledWeights b = read_scaled(slice.b[slot], slice.b_scale[slot], slice.b.size(1),
                                          slice.ranks[slot], args.block);
      expand_segment(args, int64_t(i), b, slice.scalings[slot], tokens, offset);
    }
    offset += slice.b.size(1);
  }
}

}  // namespace loratory::reference
