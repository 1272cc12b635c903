#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fuzz/support/lora_case.hpp"
#include "gpu/api/lora_layer.hpp"
#include "reference/numerics/tensor.hpp"
#include "reference/quantized/quantized_linear.hpp"

// Layers of 8-bit weights that kernels are judged by: on a GPU, and on an emulated one.

namespace loratory::gpu {

/// Which factors. `block` has several groups in a row, `one_group` blocks of all columns.
enum class Factors : uint8_t { tensor, channel, block, one_group };

struct QuantizedLayerCase {
  uint64_t seed = 0;
  int64_t num_tokens = 1, num_in = 64, max_rank = 16, max_loras = 1;
  std::vector<int64_t> widths = {64};
  reference::Dtype x = reference::Dtype::bf16;  ///< 8-bit: w8a8
  reference::Dtype y = reference::Dtype::bf16;
  Factors factors = Factors::channel;
  bool by_tensor = false;  ///< factors of 8-bit x and h
  bool integers = false;   ///< weights of i8
  reference::Fill fill = reference::Fill::reals;
  bool add_inputs = true;
  bool lacks_modules = false;  ///< some slots have no ranks of a slice; y has -0 among its numbers
  reference::SumMode sum = reference::SumMode::one_round;

  bool is_w8a8() const { return is_quantized(x); }
};
std::string describe(const QuantizedLayerCase& c);

/// A random case whose rows are aligned, or not; about `num_products` at most.
QuantizedLayerCase random_quantized_layer(uint64_t seed, bool aligned, int64_t num_products);

/// An aligned layer of gate and up beside wide x, that may end with SwiGLU.
QuantizedLayerCase random_quantized_gate_and_up(uint64_t seed, int64_t num_products);

/// The tensors of a case. Each slice's A and B have a format of their own. small_integers: bits -2
/// to 2 and factors that are powers of two, so that every sum is exact. NaN (127 in i8) and NaN
/// factors in everything that no operation may read.
struct QuantizedLayerData {
  explicit QuantizedLayerData(const QuantizedLayerCase& c);

  reference::QuantizedShrinkArgs shrink_args(reference::Tensor& h);
  reference::QuantizedExpandArgs expand_args(const reference::Tensor& h,
                                             const std::optional<reference::Tensor>& h_scale,
                                             reference::Tensor& y);
  reference::QuantizedLinearArgs linear_args(reference::Tensor& y);
  int64_t rank(size_t slice, int64_t t) const;
  int64_t num_slices() const { return int64_t(a.size()); }

  QuantizedLayerCase shape;
  std::vector<int32_t> slots;
  std::vector<std::vector<int32_t>> ranks;
  std::vector<std::vector<float>> scalings;
  std::vector<reference::Tensor> a, a_scale, b, b_scale;
  reference::BlockSize a_block, b_block;
  reference::Tensor x, y;
  std::optional<reference::Tensor> x_scale;
  /// What an expand alone starts from: fp32, or of x's dtype with factors.
  reference::Tensor h;
  std::optional<reference::Tensor> h_scale;
};

/// All variants of an operation: of a linear the shrinks of two launches, then those in one, which
/// aligned layers of wide x have whose y is of its type or fp32.
std::vector<LoraVariant> all_quantized_variants(const QuantizedLayerCase& c, LoraOp op,
                                                bool is_generic);

/// Every gated expand behind a shrink of 8 tokens and behind one of 32, if it divides them.
std::vector<SiluMulVariants> quantized_silu_mul_variants();

/// fp32 h of the case's sizes, all of it NaN.
reference::Tensor empty_h(const QuantizedLayerData& data);

/// The layer on tensors that lie where `view_of`, `ranks_of` and `scalings_of` say.
struct Placed {
  std::function<DeviceView(const reference::Tensor&)> view;
  std::function<const int32_t*(const std::vector<int32_t>&)> ranks;
  std::function<const float*(const std::vector<float>&)> scalings;
};
LoraLayerDesc desc_of(const QuantizedLayerData& data, LoraOp op, const Placed& placed);

/// What differs from the oracle by more than the bound, "" if nothing does. `worst` grows to the
/// largest error / bound. exact: against the bits of the reference.
struct Verdict {
  std::string wrong;
  int64_t num_results = 0;
  double worst = 0;
};
Verdict judge_shrink(QuantizedLayerData& data, const reference::Tensor& h, bool exact);
Verdict judge_expand(QuantizedLayerData& data, const reference::Tensor& y, bool exact);
/// exact: for small integers, or the generic path.
Verdict judge_linear(QuantizedLayerData& data, const reference::Tensor& y, bool exact);

}  // namespace loratory::gpu
