#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "scheduler_sim/metrics/measures.hpp"

namespace loratory::sim {

/// One results.json, as far as two of them are compared.
struct ResultsFile {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  struct Config {
    int64_t max_loras = 0, max_cpu_loras = 0, num_replicas = 1;
    bool feasible = true;
    std::string verdict;
    std::string event_log_hash;
    std::vector<double> values;  ///< by index of measures(); NaN = null in the file
    /// Over the seeds, where the file has them; NaN = none. The TTFT is that of the SLO.
    double goodput_min = kNone, goodput_max = kNone, ttft_min_ms = kNone, ttft_max_ms = kNone;
  };
  struct Setting {
    std::string name, value;
  };
  std::string path;
  std::vector<Setting> settings;  ///< flags, SLO, checksums of the inputs, version
  std::vector<Config> configs;
  int64_t recommended = -1;  ///< index into configs
  bool has_slo = false;
};

/// Reads a results.json of this version's schema, plain, gzip or zstd. Throws InputError that names
/// the file and the key. At most 256 MiB, unpacked too.
ResultsFile read_results(const std::string& path);

/// Two files side by side.
struct Comparison {
  std::string text;                   ///< what people read, 100 columns
  std::vector<std::string> failures;  ///< a line for each condition that holds
};

/// Configurations match by max_loras, max_cpu_loras and number of replicas; one in each file match
/// whatever they are. A condition is judged on every pair; a configuration that fits in memory in A
/// alone, and one whose measure is null in B, makes it hold. The sentence at the end is about the
/// recommended ones, if both files recommend one, else about the pair with the best goodput in A.
/// Throws InputError if no configuration of A is in B.
Comparison compare(const ResultsFile& a, const ResultsFile& b,
                   std::span<const Condition> conditions);

}  // namespace loratory::sim
