#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "reference/base/input_error.hpp"

namespace loratory::sim {

inline constexpr int64_t kSecond = 1'000'000'000;  // in ns

/// The message of the InputError that `action` throws; fails when it throws none.
template <typename Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no InputError";
  return {};
}

/// A file of the running test, removed at its end.
class TempFile {
 public:
  explicit TempFile(const std::string& text) {
    path_ = testing::TempDir() + "temp_file.txt";
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~TempFile() { std::filesystem::remove(path_); }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Pearson's statistic of counts against expected shares, as a number of standard deviations of its
/// law: chi-square with f degrees of freedom has mean f and variance 2f. Seeds are fixed, so this
/// is a check of the law and not a gamble: a right one stays below 4, a wrong one runs into
/// hundreds.
inline double chi_square_z(const std::vector<uint64_t>& counts, const std::vector<double>& shares) {
  double total = 0, statistic = 0, freedom = -1;
  for (const uint64_t count : counts) total += double(count);
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = total * shares[i];
    if (expected == 0) {
      EXPECT_EQ(counts[i], 0u) << "bin " << i << " has no share";
      continue;
    }
    const double difference = double(counts[i]) - expected;
    statistic += difference * difference / expected;
    freedom += 1;
  }
  return (statistic - freedom) / std::sqrt(2 * freedom);
}

}  // namespace loratory::sim
