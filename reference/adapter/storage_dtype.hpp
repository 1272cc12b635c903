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
  boolean,
  f4,
  f6e2m3,
  f6e3m2,
  u8,
  i8,
  f8e5m2,
  f8e4m3,
  f8e8m0,
  f8e4m3fnuz,
  f8e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64,
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
