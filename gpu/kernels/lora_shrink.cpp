#include "gpu/kernels/lora_shrink.hpp"

namespace loratory::gpu {
namespace {

LoraLinearDesc as_linear(const LoraShrinkDesc& desc) {
  LoraLinearDesc out{};
  for (const LoraShrinkSliceDesc& slice : desc.slices) {
    out.slices.push_back({.a = slice.a, .b = {}, .ranks = slice.ranks});
  }
  return out;
}

}  // namespace

LoraShrink::LoraShrink(const LoraShrinkDesc& desc) : layer_(LoraStage::shrink, as_linear(desc)) {}

}  // namespace loratory::gpu
