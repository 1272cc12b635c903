#pragma once

#include <type_traits>

#include "gpu/model/eight.cuh"

namespace loratory::gpu {

/// Eight neighbouring numbers as memory has them. Of 16 bits they take half the registers while
/// they are on their way, or wait for what they are multiplied by.
template <typename T>
using PackedEight = std::conditional_t<sizeof(T) == 2, uint4, Eight>;

template <typename T>
__device__ inline PackedEight<T> load_packed(const T* from) {
  if constexpr (sizeof(T) == 2)
    return *reinterpret_cast<const uint4*>(from);
  else
    return load_vectors(from);
}

template <typename T>
__device__ inline Eight unpacked_eight(const PackedEight<T>& packed) {
  if constexpr (sizeof(T) == 2)
    return unpacked<T>(packed);
  else
    return packed;
}

}  // namespace loratory::gpu
