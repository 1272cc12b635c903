#pragma once

#include <string>

namespace loratory::sim {

/// How well a profile predicts servers that it was not fitted to; -1 = not known. Fractions, but
/// TTFT's for short ones in milliseconds.
struct ExpectedError {
  double num_runs = 0;
  double throughput = -1, itl = -1, ttft = -1, short_ttft_ms = -1;
  std::string how;  ///< "5 folds of whole sweeps"

  friend bool operator==(const ExpectedError&, const ExpectedError&) = default;
};

}  // namespace loratory::sim
