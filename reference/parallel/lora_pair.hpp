#pragma once

#include <optional>
#include <vector>

#include "reference/numerics/tensor.hpp"

namespace loratory::reference {

/// One adapter on one slice, unsharded. Lifetime: the owner's; nothing here writes through it.
struct LoraPair {
  ConstTensorView a;  ///< [r, K]
  ConstTensorView b;  ///< [N, r]
  float scaling = 1;

  int64_t rank() const { return a.size(0); }
};

/// One adapter on one layer: a pair for each slice; nullopt: the adapter has none (None) [1.24].
using LoraPairs = std::vector<std::optional<LoraPair>>;

/// Spreads the tensors of a checkpoint over the n slices of a layer: each B covers one or more
/// consecutive `output_sizes` exactly, from left to right; its A stands with each of them. So one
/// pair of an already fused module, three pairs, or two of four (qkv and z) all become n pairs.
/// Views into the same memory: delta keeps its bits, the sum over the rank being the same.
/// Errors   InputError "packed LoRA B rows do not align with slice sizes": a B that ends inside of
///          a slice, pairs for fewer or more slices than there are. None in a list that is shorter
///          than n: which slices it stands for cannot be known.
/// Cost     O(n).   Source  statements [1.25], [3.6], [3.24]; vLLM expand_packed.
LoraPairs expand_packed(const LoraPairs& pairs, const std::vector<int64_t>& output_sizes);

}  // namespace loratory::reference
