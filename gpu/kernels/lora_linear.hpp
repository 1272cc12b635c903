#pragma once

#include "gpu/kernels/lora_layer.hpp"

// LoRA on linear layers, on the GPU. Letters as in lora_desc.hpp; reference/lora/linear.hpp says
// what is computed, here is how it is asked for.
//
// Covered  as there: nothing else is read or written.
// Repeats  bitwise: row t depends on x[t], its slot's weights and the layer alone. Not on the
//          batch, its segments, the variant of the kernel, the stream, or whether a graph replays
//          it.
// Bound    tensor_core path: Arithmetic{mode with h = split2 in place of fp32, unit = 2^-22} of
//          error_bound.hpp. generic path: generic_lora.hpp.

namespace loratory::gpu {

/// The delta of one packed layer, checked once and launched every step.
class LoraLinear {
 public:
  /// Errors   InputError naming the argument: shapes, dtypes, strides or alignment that do not fit.
  explicit LoraLinear(LoraLinearDesc desc) : layer_(LoraStage::linear, std::move(desc)) {}

  /// y += scaling · (x A^T) B^T for the tokens of `segments`, whose size is that of the variant.
  /// x [T, K], y [T, >= columns], each f32, bf16 or f16.
  /// Never allocates, never waits; may be captured. Grid and arguments follow from the number of
  /// rows of x and the room for segments alone, so a replayed graph follows the segments that are
  /// on the device then.
  /// Errors   InputError for x, y or the segment size; std::runtime_error from CUDA.
  void launch(const DeviceView& x, const DeviceView& y, const SegmentView& segments,
              CUstream_st* stream, LaunchOrder order = LaunchOrder::after_previous) const {
    launch(variant_for(x, y), x, y, segments, stream, order);
  }

  /// With another variant than the rules choose, for tests.
  void launch(const LoraVariant& variant, const DeviceView& x, const DeviceView& y,
              const SegmentView& segments, CUstream_st* stream, LaunchOrder order) const {
    layer_.launch(variant, {.x = x, .h = {}, .y = y}, segments, stream, order);
  }

  LoraVariant variant_for(const DeviceView& x, const DeviceView& y) const {
    return layer_.variant_for({.x = x, .h = {}, .y = y});
  }
  LoraPath path_for(const DeviceView& x, const DeviceView& y) const {
    return layer_.path_for({.x = x, .h = {}, .y = y});
  }
  int64_t num_columns() const { return layer_.num_columns(); }
  int64_t max_rank() const { return layer_.max_rank(); }

 private:
  LoraLayer layer_;
};

}  // namespace loratory::gpu
