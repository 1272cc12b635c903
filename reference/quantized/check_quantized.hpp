#pragma once

#include <optional>
#include <string_view>

#include "reference/quantized/quantized_linear.hpp"

// Checks shared by the functions of this folder; each throws InputError(place, rule).

namespace loratory::reference {

constexpr int64_t num_groups(int64_t size, int64_t group) { return (size + group - 1) / group; }

/// Both 0, or both positive.
void check_block(std::string_view place, const BlockSize& block);

/// An 8-bit weight [L, rows, columns] and the shape of its scale.
void check_weight(std::string_view place, const ConstTensorView& bits, const ConstTensorView& scale,
                  const BlockSize& block);

/// The scale of 8-bit activations [..., T, columns], `lead` being the sizes before T.
void check_activation_scale(std::string_view place, const ConstTensorView& scale,
                            const ConstTensorView& bits, const Extents& lead, int64_t block_k);

/// Activations, and their scale if they are 8-bit; else there must be none.
void check_activations(std::string_view place, const ConstTensorView& bits,
                       const std::optional<ConstTensorView>& scale, const Extents& lead,
                       int64_t block_k);

/// w8a16, or w8a8 of one kind.
void check_pair(std::string_view place, Dtype weight, Dtype activations);

}  // namespace loratory::reference
