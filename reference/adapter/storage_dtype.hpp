#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "reference/numerics/dtype.hpp"

namespace loratory::reference {

/// Every element type that a safetensors file may name, in the order in which the official writer
/// sorts tensors (it writes the last ones first). Weights of adapters use five
/// of them [4.3].
enum class StorageDtype : uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

/// "BF16"
std::string_view dtype_name(StorageDtype dtype);
/// 4, 6, 8, 16, 32 or 64.
int dtype_bits(StorageDtype dtype);
/// The type of that name, which is spelled in capitals; none if the format has no such type.
std::optional<StorageDtype> find_dtype(std::string_view name);

/// The number format of F32, F16, BF16, F8_E4M3 and F8_E5M2: what the weights of an adapter may be
/// stored in [4.3]. None for the others.
std::optional<Dtype> weight_dtype(StorageDtype dtype);
/// The reverse.
StorageDtype storage_dtype(Dtype dtype);

}  // namespace loratory::reference
