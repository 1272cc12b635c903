#pragma once

#include <cstdint>

#include "gpu/product/skinny_plan.hpp"

namespace loratory::gpu::emulated {

/// launch_skinny_product() on an emulated GPU that holds so many clusters at once; `layout` may
/// have fewer stages than fit.
void run_skinny_product(const ProductShape& shape, const ProductChoice& choice,
                        const SkinnyLayout& layout, const ProductTensors& tensors, int max_clusters,
                        uint64_t seed);

}  // namespace loratory::gpu::emulated
