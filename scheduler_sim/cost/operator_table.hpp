#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace loratory::sim {

/// Measured times of one operator: for each key (the numbers that `key_names` names) a time at
/// every place of the axis.
struct OperatorGrid {
  std::string name;       ///< "gemm_bf16"
  std::string key_names;  ///< "n,k"
  size_t num_keys = 0;    ///< numbers of a key
  std::vector<double> axis;
  std::vector<int64_t> keys;  ///< num_keys a row, rows ascending
  std::vector<float> ns;      ///< axis.size() a row; 0 = not measured

  size_t num_rows() const { return num_keys == 0 ? 0 : keys.size() / num_keys; }
  std::span<const int64_t> key(size_t row) const {
    return std::span(keys).subspan(row * num_keys, num_keys);
  }
  std::span<const float> times(size_t row) const {
    return std::span(ns).subspan(row * axis.size(), axis.size());
  }
  /// The times of a key; empty if it was not measured. O(log rows).
  std::span<const float> find(std::span<const int64_t> key) const;
};

/// What was measured on one GPU.
struct OperatorTable {
  std::string name;    ///< "h100_sxm"
  std::string card;    ///< the preset of the GPU that was measured
  std::string source;  ///< package, version, engine
  std::vector<OperatorGrid> grids;

  /// nullptr if nobody measured it.
  const OperatorGrid* find(std::string_view grid) const;
};

/// Reads the text that scripts/make_operator_tables.py writes, where the format is described.
/// Throws InputError.
OperatorTable parse_operator_table(std::string_view text, std::string_view place);

/// Names of the tables that the library holds.
std::span<const std::string_view> operator_table_names();

/// One of them, unpacked at the first call (about 10 ms). Thread-safe. The name must be one of
/// operator_table_names.
const OperatorTable& operator_table(std::string_view name);

}  // namespace loratory::sim
