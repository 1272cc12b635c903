#include "gpu/moe/expert_lora.hpp"

namespace loratory::gpu {

LoraSliceDesc expert_slice(reference::Dtype dtype, void* a, void* b, const ExpertSliceShape& s,
                           const int32_t* ranks, const float* scalings, SharedWeights shared) {
  LoraSliceDesc out{.a = device_view(dtype, a, {s.num_slots, s.max_rank, s.num_in}),
                    .b = device_view(dtype, b, {s.num_slots, s.num_out, s.max_rank}),
                    .ranks = ranks,
                    .scalings = scalings};
  if (!shared.a) {
    out.a_expert_stride = out.a.strides[0];
    out.a.strides[0] *= s.num_experts;
  }
  if (!shared.b) {
    out.b_expert_stride = out.b.strides[0];
    out.b.strides[0] *= s.num_experts;
  }
  return out;
}

void ExpertLora::launch(const LoraTensors& tensors, const GroupViews& groups, CUstream_st* stream,
                        LaunchOrder order) const {
  const LoraVariant variant = layer_.variant_for(tensors);
  layer_.launch_variant(variant, tensors, groups.of(variant.segment_size()), stream, order);
}

}  // namespace loratory::gpu
