#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "fuzz/support/layer_case.hpp"

// A case of a property: what it draws from its seed, and what it reports. LORATORY_GPU_WORK makes
// cases smaller (tests/gpu/device/suite.hpp).

namespace loratory::gpu {

/// A variable of the environment, or "".
std::string environment(const char* name);
int64_t environment_or(const char* name, int64_t otherwise);

/// What one property has seen.
struct Record {
  int64_t num_cases = 0;
  int64_t num_results = 0;  ///< elements compared with something
  double worst_error_over_bound = 0;
  std::map<std::string, int64_t> classes = {};  ///< how many cases were of a kind
};

/// One case of a property.
class Trial {
 public:
  Trial(uint64_t seed, Record& record) : seed_(seed), record_(record) {}

  uint64_t seed() const { return seed_; }
  /// Number `index` of this case below `below`.
  int64_t pick(uint64_t index, int64_t below) const;
  /// A layer of this seed, cut to the limits and to what the environment allows; classified.
  reference::LayerCase layer(const reference::LayerLimits& limits) const;
  /// A size of a case that layer() does not draw: the smaller one where the environment limits
  /// work.
  static int64_t size(int64_t full, int64_t reduced);
  void classify(bool is, const std::string& kind) const;
  void count(int64_t num_results, double error_over_bound = 0) const;

 private:
  uint64_t seed_;
  Record& record_;
};

}  // namespace loratory::gpu
