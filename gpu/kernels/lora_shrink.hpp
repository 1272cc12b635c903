#pragma once

#include "gpu/kernels/lora_linear.hpp"

namespace loratory::gpu {

/// The first half of a delta alone, as an engine that gathers h between tp_ranks asks for it.
///
/// h[i, t, j] = round_h( sum_c A_i[s(t), j, c] · x[t, c] ),  j < r(s(t), i).
/// Covered   rows of tokens with an adapter, columns below the rank; the rest of h keeps what it
///           holds.
/// Rounding  fp32 sums, once to h's dtype. No scaling.
/// Bound     shrink_error_bound() of error_bound.hpp, unit 2^-22 on the tensor_core path; the
///           generic path gives the bits of the reference.
/// Repeats   bitwise, as LoraLinear.
/// Source    statements [1.7], [1.8]; shrink() of reference/lora/linear.hpp.
class LoraShrink {
 public:
  /// Errors   InputError naming the argument.
  explicit LoraShrink(const LoraShrinkDesc& desc);

  /// x [T, K], h [S, T, >= largest R_i], each f32, bf16 or f16; h must not overlap x.
  /// Never allocates, never waits; may be captured, as LoraLinear.
  /// Errors   InputError for x, h or the segment size; std::runtime_error from CUDA.
  void launch(const DeviceView& x, const DeviceView& h, const SegmentView& segments,
              CUstream_st* stream, LaunchOrder order = LaunchOrder::after_previous) const {
    launch(variant_for(x, h), x, h, segments, stream, order);
  }

  /// With another variant than the rules choose, for tests.
  void launch(const LoraVariant& variant, const DeviceView& x, const DeviceView& h,
              const SegmentView& segments, CUstream_st* stream, LaunchOrder order) const {
    layer_.launch(variant, {.x = x, .h = h, .y = {}}, segments, stream, order);
  }

  LoraVariant variant_for(const DeviceView& x, const DeviceView& h) const {
    return layer_.variant_for({.x = x, .h = h, .y = {}});
  }
  LoraPath path_for(const DeviceView& x, const DeviceView& h) const {
    return layer_.path_for({.x = x, .h = h, .y = {}});
  }
  int64_t max_rank() const { return layer_.max_rank(); }

 private:
  LoraLayer layer_;
};

}  // namespace loratory::gpu
