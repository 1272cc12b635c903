#pragma once

#include <vector>

#include "fuzz/support/lora_case.hpp"
#include "gpu/api/lora_layer.hpp"
#include "gpu/layout/device_segments.hpp"
#include "gpu/runtime/device_buffer.hpp"
#include "guarded_tensor.hpp"

namespace loratory::gpu {

/// The tensors of a random case on the GPU. Weights, ranks and scalings stay; y is written anew for
/// each run.
class GpuCase {
 public:
  explicit GpuCase(const reference::LoraData& data);

  /// y after one launch of `variant` on the tokens of the case (or of some of them, as a batch of
  /// their own).
  reference::Tensor run(const LoraVariant& variant) const { return run(layer_, variant); }
  /// The same by another layer on these tensors.
  reference::Tensor run(const LoraLayer& layer, const LoraVariant& variant) const;
  /// What is in h after a lora_shrink.
  reference::Tensor shrink(const LoraVariant& variant, const reference::Tensor& h) const {
    return shrink(shrink_, variant, h);
  }
  /// The same by another layer; on a grid that is cut for `max_segments`, if that is not 0.
  reference::Tensor shrink(const LoraLayer& layer, const LoraVariant& variant,
                           const reference::Tensor& h, int32_t max_segments = 0) const;
  /// y after a lora_expand of h, whose segments are of `parts` times the variant's tokens.
  reference::Tensor expand(const LoraVariant& variant, const reference::Tensor& h,
                           int32_t parts = 1) const;

  const LoraLayerDesc& desc() const { return desc_; }
  const LoraLayer& layer() const { return layer_; }
  const LoraLayer& shrink_layer() const { return shrink_; }
  const LoraLayer& expand_layer() const { return expand_; }
  DeviceView x() const { return x_.view(); }
  DeviceView y() const { return y_.view(); }
  bool can_be_aligned() const {
    return layer_.variant_for({.x = x_.view(), .y = y_.view()}).aligned;
  }

 private:
  const reference::LoraData& data_;
  GuardedTensor x_;
  mutable GuardedTensor y_;
  std::vector<GuardedTensor> weights_;  // a0, b0, a1, b1, ...
  std::vector<DeviceBuffer> tables_;    // ranks0, scalings0, ...
  DeviceBuffer workspace_, split_sums_;
  LoraLayerDesc desc_;
  LoraLayer layer_;
  LoraLayer shrink_;
  LoraLayer expand_;

  LoraLayerDesc make_desc();
  DeviceSegments segments(int32_t segment_size) const;
};

/// Every variant of a linear that has a kernel for these tensors.
std::vector<LoraVariant> variants(bool aligned);

}  // namespace loratory::gpu
