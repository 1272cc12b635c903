#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <vector>

#include "fuzz/support/lora_case.hpp"
#include "reference/quantized/quantized_linear.hpp"

namespace loratory::reference {

/// Which factors: the allowed pairs of weights and activations.
enum class Pair : uint8_t { tensor_tensor, tensor_token, channel_tensor, channel_token, block };

/// A batch on one packed layer with 8-bit weights; as LoraCase, everything else from the seed:
/// group sizes too, mostly not square.
struct QuantizedCase {
  uint64_t seed = 0;
  int num_tokens = 0, num_in = 1, num_slices = 1, max_loras = 1, max_rank = 1;
  int weight = 0;      ///< f8_e4m3fn, f8_e5m2, i8
  int activation = 0;  ///< f32, f16, bf16, or 8-bit: of the weights' kind
  int pair = 0;

  Dtype weight_dtype() const;
  Dtype activation_dtype() const;  ///< e4m3 and e5m2 meet, too
  bool is_w8a8() const { return activation == 3; }
  Pair pair_value() const { return Pair(pair); }
  /// Does a number of activations share its factor with other tokens?
  bool is_by_tensor() const {
    return pair_value() == Pair::tensor_tensor || pair_value() == Pair::channel_tensor;
  }
};

std::ostream& operator<<(std::ostream& out, const QuantizedCase& c);

/// The case that LORATORY_CASE names, or a random one; logs it and classifies its corners.
QuantizedCase any_quantized_case();

/// The tensors of a case, owned. small_integers: bits -2..2 and factors that are powers of two,
/// every result exact; else reals. h is a tensor of its own, not what shrink gives.
/// NaN (127 in i8) in everything that no operation may read: beyond ranks, in empty slots, in rows
/// of base tokens; factors there are NaN in any case.
struct QuantizedData {
  QuantizedData(const QuantizedCase& c, Fill fill);

  /// Read and write this object's tensors; h of a shrink is `out`.
  QuantizedShrinkArgs shrink_args(Tensor& out);
  QuantizedExpandArgs expand_args();
  QuantizedLinearArgs linear_args();

  int32_t slot(int64_t t) const { return slots[size_t(t)]; }
  int64_t rank(int64_t slice, int64_t t) const;  ///< 0 for base tokens
  int64_t num_slices() const { return int64_t(a.size()); }
  int64_t num_tokens() const { return int64_t(slots.size()); }

  std::vector<int32_t> slots;
  std::vector<int64_t> num_out;  ///< of each slice
  std::vector<std::vector<int32_t>> ranks;
  std::vector<std::vector<float>> scalings;
  std::vector<Tensor> a, a_scale, b, b_scale;  ///< of each slice
  BlockSize a_block, b_block;
  Tensor x, h, y;
  std::optional<Tensor> x_scale, h_scale;
  bool add_inputs = true;
  SumMode sum = SumMode::one_round;
};

}  // namespace loratory::reference
