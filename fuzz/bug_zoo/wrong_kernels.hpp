#pragma once

#include <vector>

#include "fuzz/bug_zoo/naive_kernel.hpp"

namespace loratory::zoo {

inline constexpr uint32_t kLinear = bit(LORATORY_OP_LINEAR);
inline constexpr uint32_t kShrink = bit(LORATORY_OP_SHRINK);
inline constexpr uint32_t kExpand = bit(LORATORY_OP_EXPAND);
inline constexpr uint32_t kEmbedding = bit(LORATORY_OP_EMBEDDING);
inline constexpr uint32_t kLogits = bit(LORATORY_OP_LOGITS);
inline constexpr uint32_t kExpertLinear = bit(LORATORY_OP_EXPERT_LINEAR);
inline constexpr uint32_t kExpertShrink = bit(LORATORY_OP_EXPERT_SHRINK);
inline constexpr uint32_t kExpertExpand = bit(LORATORY_OP_EXPERT_EXPAND);

template <typename Kernel>
ZooKernel wrong(const LoratoryClaims& claims) {
  return inhabitant<Kernel>(Kernel::kNote, claims);
}

void add_wrong_linear_kernels(std::vector<ZooKernel>& zoo);
/// 8-bit numbers, experts, embeddings and logits.
void add_wrong_special_kernels(std::vector<ZooKernel>& zoo);

}  // namespace loratory::zoo
