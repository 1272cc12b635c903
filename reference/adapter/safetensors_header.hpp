#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reference/adapter/storage_dtype.hpp"

namespace loratory::reference {

/// One entry of a safetensors header; begin and end are relative to the end of the header.
struct HeaderEntry {
  std::string name;
  StorageDtype dtype = StorageDtype::f32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// The entries of the header `json`, sorted by offset, checked against the `num_data_bytes` that
/// follow it. Errors and limits: SafetensorsFile. `place` names the file.
std::vector<HeaderEntry> parse_safetensors_header(std::string_view json, uint64_t num_data_bytes,
                                                  std::string_view place);

}  // namespace loratory::reference
