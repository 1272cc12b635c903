#pragma once

#include "gpu/product/base_product.hpp"

namespace loratory::gpu {

/// What a launch of M tokens costs a layer of an engine, in us, where `us` is what it takes in a
/// chain of launches of the same product that overlap. The chain lacks the small kernels between
/// products, SwiGLU and LoRA (docs/base_products.md, Speed).
double us_in_a_layer(const ProductShape& shape, int64_t num_tokens, const ProductChoice& choice,
                     ProductUse use, double us, int num_sms);

}  // namespace loratory::gpu
