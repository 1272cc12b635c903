#include "reference/adapter/storage_dtype.hpp"

#include <array>

#include "reference/base/check.hpp"

namespace loratory::reference {
namespace {

struct DtypeRow {
  std::string_view name;
  int bits;
};

// In the order of the enumeration.
constexpr std::array<DtypeRow, 22> kRows{{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};

constexpr std::array kWeightDtypes{Dtype::f32, Dtype::f16, Dtype::bf16, Dtype::f8_e4m3fn,
                                   Dtype::f8_e5m2};

}  // namespace

std::string_view dtype_name(StorageDtype dtype) { return kRows[size_t(dtype)].name; }

int dtype_bits(StorageDtype dtype) { return kRows[size_t(dtype)].bits; }

std::optional<StorageDtype> find_dtype(std::string_view name) {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].name == name) return static_cast<StorageDtype>(i);
  }
  return std::nullopt;
}

std::optional<Dtype> weight_dtype(StorageDtype dtype) {
  for (const Dtype weight : kWeightDtypes) {
    if (storage_dtype(weight) == dtype) return weight;
  }
  return std::nullopt;
}

StorageDtype storage_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
      return StorageDtype::f32;
    case Dtype::f16:
      return StorageDtype::f16;
    case Dtype::bf16:
      return StorageDtype::bf16;
    case Dtype::f8_e4m3fn:
      return StorageDtype::f8e4m3;
    case Dtype::f8_e5m2:
      return StorageDtype::f8e5m2;
    case Dtype::i8:
      return StorageDtype::i8;
  }
  LORATORY_ASSERT(false, "every number format can be stored");
  return StorageDtype::f32;
}

}  // namespace loratory::reference
