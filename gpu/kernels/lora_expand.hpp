#pragma once

#include "gpu/kernels/lora_linear.hpp"

namespace loratory::gpu {

/// The second half of a delta alone.
///
/// y[t, o_i + n] = base + scaling(s(t), i) · sum_{j < r(s(t), i)} h[i, t, j] · B_i[s(t), n, j],
/// o_i = offset_start + N_0 + ... + N_{i-1}.
/// Covered   rows of tokens with an adapter, columns of slices with a rank; the rest of y is
///           neither read nor written, nor are rows of base tokens and the tail of the rank in h.
/// Rounding  as expand() of reference/lora/linear.hpp. The tensor_core path keeps an fp32 h as
///           split2.
/// Bound     as LoraLinear with num_in = 0; the generic path gives the bits of the reference.
/// Repeats   bitwise, as LoraLinear.
/// Source    statements [1.1]-[1.8], [1.17]; expand() of reference/lora/linear.hpp.
class LoraExpand {
 public:
  /// Errors   InputError naming the argument.
  explicit LoraExpand(const LoraExpandDesc& desc);

  /// For the tokens of `segments`, whose size is a multiple of the variant's.
  /// h [S, T, >= largest R_i], y [T, >= columns], each f32, bf16 or f16; y must not overlap h.
  /// Never allocates, never waits; may be captured, as LoraLinear.
  /// Errors   InputError for h, y or the segment size; std::runtime_error from CUDA.
  void launch(const DeviceView& h, const DeviceView& y, const SegmentView& segments,
              CUstream_st* stream, LaunchOrder order = LaunchOrder::after_previous) const {
    launch(variant_for(h, y), h, y, segments, stream, order);
  }

  /// With another variant than the rules choose, for tests.
  void launch(const LoraVariant& variant, const DeviceView& h, const DeviceView& y,
              const SegmentView& segments, CUstream_st* stream, LaunchOrder order) const {
    layer_.launch(variant, {.x = {}, .h = h, .y = y}, segments, stream, order);
  }

  LoraVariant variant_for(const DeviceView& h, const DeviceView& y) const {
    return layer_.variant_for({.x = {}, .h = h, .y = y});
  }
  LoraPath path_for(const DeviceView& h, const DeviceView& y) const {
    return layer_.path_for({.x = {}, .h = h, .y = y});
  }
  int64_t num_columns() const { return layer_.num_columns(); }
  int64_t max_rank() const { return layer_.max_rank(); }

 private:
  LoraLayer layer_;
};

}  // namespace loratory::gpu
