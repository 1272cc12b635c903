#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "reference/layout/partition.hpp"
#include "reference/lora/check_args.hpp"
#include "reference/quantized/check_quantized.hpp"
#include "reference/quantized/quantized_linear.hpp"
#include "reference/quantized/scaled_product.hpp"

namespace loratory::reference {
namespace {

void check(const QuantizedShrinkArgs& args) {
  const auto num_tokens = int64_t(args.slots.size());
  check_shape("shrink_quantized: x", args.x, {num_tokens, kAnySize});
  check_shape("shrink_quantized: h", args.h, {int64_t(args.slices.size()), num_tokens, kAnySize});
  check_wide_dtype("shrink_quantized: h", args.h.dtype);
  check_block("shrink_quantized: block", args.block);
  check_activations("shrink_quantized: x", args.x, args.x_scale, {}, args.block.k);
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const QuantizedShrinkSlice& slice = args.slices[i];
    const std::string place = fmt::format("shrink_quantized: slices[{}]", i);
    check_shape(place + ".a", slice.a, {max_loras(args), kAnySize, args.x.size(1)});
    check_weight(place + ".a", slice.a, slice.a_scale, args.block);
    check_pair(place + ".a", slice.a.dtype, args.x.dtype);
    check_ranks(place + ".ranks", slice.ranks, max_loras(args),
                std::min(slice.a.size(1), args.h.size(2)));
  }
  check_slots(args.slots, int32_t(max_loras(args)));
}

void shrink_segment(const QuantizedShrinkArgs& args, const ScaledWeights& a,
                    const std::vector<int32_t>& tokens, const TensorView& h) {
  const auto num_tokens = int64_t(tokens.size());
#pragma omp parallel for if (num_tokens * a.num_products() >= kMinParallelProducts)
  for (int64_t i = 0; i < num_tokens; ++i) {
    const Vector<float> h_t = multiply_scaled(a, args.x, args.x_scale, tokens[i]);
    for (Eigen::Index j = 0; j < h_t.size(); ++j) h.set(h_t(j), tokens[i], j);
  }
}

}  // namespace

void shrink_quantized(const QuantizedShrinkArgs& args) {
  check(args);
  const Partition tokens_of = partition(make_batch_layout(args.slots, int32_t(max_loras(args))));
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const QuantizedShrinkSlice& slice = args.slices[i];
    for (const auto& [slot, tokens] : tokens_of) {
      if (slice.ranks[slot] == 0) continue;
      const ScaledWeights a = read_scaled(slice.a[slot], slice.a_scale[slot], slice.ranks[slot],
                                          args.x.size(1), args.block);
      shrink_segment(args, a, tokens, args.h[int64_t(i)]);
    }
  }
}

}  // namespace loratory::reference
