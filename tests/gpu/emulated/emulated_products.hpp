#pragma once

#include <cstdint>
#include <functional>

#include "gpu/product/skinny_plan.hpp"

namespace loratory::gpu::emulated {

/// What an emulated launch may have otherwise than a real one.
struct SkinnyRun {
  int max_clusters = 1;         ///< that the GPU holds at once
  int32_t num_stages = 0;       ///< 0: all that fit
  int32_t num_asked_ahead = 0;  ///< 0: as many as a launch asks for
  std::function<void()> prior_grid{};
  uint64_t seed = 1;
};

/// launch_skinny_product() on an emulated GPU.
void run_skinny_product(const ProductShape& shape, const ProductChoice& choice,
                        const ProductTensors& tensors, const SkinnyRun& run);

/// One number of SwiGLU with the emulated GPU's arithmetic, before it is rounded.
float silu_mul_of(float gate, float up);

}  // namespace loratory::gpu::emulated
