#include "reference/adapter/storage_dtype.hpp"

#include <array>

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

}  // namespace

std::string_view dtype_name(StorageDtype dtype) { return kRows[static_cast<size_t>(dtype)].name; }

int dtype_bits(StorageDtype dtype) { return kRows[static_cast<size_t>(dtype)].bits; }

std::optional<StorageDtype> find_dtype(std::string_view name) {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].name == name) return static_cast<StorageDtype>(i);
  }
  return std::nullopt;
}

bool is_fp8(StorageDtype dtype) {
  return dtype == StorageDtype::kF8E4M3 || dtype == StorageDtype::kF8E5M2;
}

bool is_weight_dtype(StorageDtype dtype) {
  return dtype == StorageDtype::kF32 || dtype == StorageDtype::kF16 ||
         dtype == StorageDtype::kBF16 || is_fp8(dtype);
}

}  // namespace loratory::reference
