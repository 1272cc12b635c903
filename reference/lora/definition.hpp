#pragma once

#include "reference/lora/linear.hpp"

namespace loratory::reference {

/// What lora_linear() computes, as the statements write it: loops over slices, tokens, columns,
/// ranks and in-features, one scalar after the other. Read this first; linear.hpp is its fast twin.
///
/// Same bits  as lora_linear() for every valid argument, mode and dtype: c and j ascend, every
///            product and sum is rounded to fp32, nothing is fused [1.16]. The properties
///            Order.LinearIsItsDefinition and LoraOrder.PackedLayersAreTheirDefinition hold
///            them together.
/// Requires   arguments that lora_linear() accepts: nothing is checked but indices.
/// Cost       O(T·S·r·(K + N)), one thread, each number read where it is used.
/// Source     statements [1.1]-[1.6], [1.8], [1.9], [1.13], [1.16], [1.17].
void lora_linear_definition(const LinearArgs& args);

}  // namespace loratory::reference
