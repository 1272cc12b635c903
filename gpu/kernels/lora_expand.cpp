#include "gpu/kernels/lora_expand.hpp"

namespace loratory::gpu {
namespace {

LoraLinearDesc as_linear(const LoraExpandDesc& desc) {
  LoraLinearDesc out{.slices = {},
                     .offset_start = desc.offset_start,
                     .add_inputs = desc.add_inputs,
                     .mode = desc.mode};
  for (const LoraExpandSliceDesc& slice : desc.slices) {
    out.slices.push_back({.a = {}, .b = slice.b, .ranks = slice.ranks, .scalings = slice.scalings});
  }
  return out;
}

}  // namespace

LoraExpand::LoraExpand(const LoraExpandDesc& desc) : layer_(LoraStage::expand, as_linear(desc)) {}

}  // namespace loratory::gpu
