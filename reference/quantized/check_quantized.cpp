#include "reference/quantized/check_quantized.hpp"

#include <fmt/format.h>

#include <string>

#include "reference/base/input_error.hpp"
#include "reference/lora/check_args.hpp"

namespace loratory::reference {

void check_block(std::string_view place, const BlockSize& block) {
  const bool none = block.n == 0 && block.k == 0;
  if (none || (block.n > 0 && block.k > 0)) return;
  throw InputError(place, fmt::format("is {} x {}", block.n, block.k),
                   "both sizes are positive, or both 0 for scales without blocks");
}

void check_weight(std::string_view place, const ConstTensorView& bits, const ConstTensorView& scale,
                  const BlockSize& block) {
  if (!is_quantized(bits.dtype)) {
    throw InputError(place, fmt::format("has dtype {}", name(bits.dtype)),
                     "8-bit weights have f8_e4m3fn, f8_e5m2 or i8");
  }
  const std::string scale_place = std::string(place) + "_scale";
  check_same_dtype(scale_place, scale.dtype, "a scale", Dtype::f32);
  const int64_t max_loras = bits.size(0), rows = bits.size(1), columns = bits.size(2);
  if (block.k > 0) {
    check_shape(scale_place, scale,
                {max_loras, num_groups(rows, block.n), num_groups(columns, block.k)});
  } else if (scale.num_axes() == 1) {
    check_shape(scale_place, scale, {max_loras});
  } else {
    check_shape(scale_place, scale, {max_loras, rows});
  }
}

void check_activation_scale(std::string_view place, const ConstTensorView& scale,
                            const ConstTensorView& bits, const Extents& lead, int64_t block_k) {
  check_same_dtype(place, scale.dtype, "a scale", Dtype::f32);
  Extents expected = lead;
  const bool by_tensor = block_k == 0 && scale.num_axes() == lead.size();
  if (!by_tensor) {
    const int64_t num_columns = bits.size(lead.size() + 1);
    expected.push_back(bits.size(lead.size()));
    expected.push_back(block_k > 0 ? num_groups(num_columns, block_k) : 1);
  }
  check_shape(place, scale, expected);
}

void check_activations(std::string_view place, const ConstTensorView& bits,
                       const std::optional<ConstTensorView>& scale, const Extents& lead,
                       int64_t block_k) {
  const std::string scale_place = std::string(place) + "_scale";
  if (!is_quantized(bits.dtype)) {
    if (!scale) return;
    throw InputError(scale_place, fmt::format("scales {}", name(bits.dtype)),
                     "only 8-bit activations have a scale");
  }
  if (!scale) throw InputError(scale_place, "is missing", "8-bit activations have one");
  check_activation_scale(scale_place, *scale, bits, lead, block_k);
}

void check_pair(std::string_view place, Dtype weight, Dtype activations) {
  if (!is_quantized(activations) || is_f8(weight) == is_f8(activations)) return;
  throw InputError(
      place, fmt::format("has dtype {}, the activations have {}", name(weight), name(activations)),
      "fp8 goes with fp8, i8 with i8");
}

}  // namespace loratory::reference
