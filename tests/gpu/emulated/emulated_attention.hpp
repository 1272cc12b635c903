#pragma once

#include <cstdint>

namespace loratory::gpu::emulated {

/// How attention is launched from now on: with so many CTAs for decode rows, in an order of this
/// seed.
void set_attention(int num_decode_ctas, uint64_t seed);

}  // namespace loratory::gpu::emulated
