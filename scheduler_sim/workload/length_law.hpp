#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace loratory::sim {

/// A law of token counts, drawn by inversion: one uniform number gives one length.
///   constant:N                 the default law is constant:1
///   lognormal:MEAN:P50[:MAX]   sigma^2 = 2 ln(MEAN / P50); rounded to the nearest token, then held
///                              in 1 .. MAX (holding moves the mean a little)
///   histogram:FILE             rows `up_to_tokens weight`, ascending: the weight of the lengths
///                              above the row before and not above this one, spread evenly; the
///                              buckets of a Prometheus histogram fit
class LengthLaw {
 public:
  static constexpr uint32_t kMaxTokens = 1u << 24;

  static LengthLaw constant(uint32_t tokens);
  /// mean >= p50 > 0; equal means a constant.
  static LengthLaw lognormal(double mean, double p50, uint32_t max_tokens = kMaxTokens);
  struct Bin {
    uint32_t up_to_tokens = 0;
    double weight = 0;
  };
  /// Ascending, weights >= 0 with a sum > 0.
  static LengthLaw histogram(const std::vector<Bin>& bins);

  /// The length at quantile u, 0 < u < 1.
  uint32_t quantile(double u) const;

 private:
  uint32_t max_tokens_ = 1;
  double mu_ = 0, sigma_ = 0;  // of the lognormal; bins_ empty
  std::vector<Bin> bins_;      // weights cumulated
};

/// Throws InputError at `place` (the name of the flag), or at `file:line:column`.
LengthLaw parse_length_law(std::string_view text, std::string_view place);

}  // namespace loratory::sim
