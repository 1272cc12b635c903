#pragma once

#include <cstdint>

namespace loratory::sim {

/// What a number is drawn for. Each purpose has its own streams, so that changing one law of a
/// workload (say the output lengths) leaves all else (arrivals, adapters, ...) as it was.
/// The values are part of "same seed, same bytes": append, never renumber.
enum class Purpose : uint32_t {
  arrivals = 1,
  adapters = 2,
  prompt_tokens = 3,
  output_tokens = 4,
  sampled_rows = 5,
  system_prompts = 6,
  turns = 7,
  think_times = 8,
  routing = 9,
  prompt_contents = 10,
};

/// Random numbers without state: value = f(seed, stream, index).
///
/// f is Philox4x64-10 with key (seed, stream) and counter (index, draw, 0, 0); the first word is
/// used. Any value can be had in any order, on any thread and on any machine, always the same.
/// `draw` tells apart several numbers behind one index. Cost: about 10 ns a number.
/// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Random123).
class RandomStream {
 public:
  RandomStream(uint64_t seed, Purpose purpose, uint32_t substream = 0)
      : seed_(seed), stream_(uint64_t(purpose) << 32 | substream) {}
  RandomStream(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}

  /// Uniform over all 64-bit integers.
  uint64_t bits(uint64_t index, uint64_t draw = 0) const;
  /// Uniform over the 2^52 midpoints (k + 1/2) * 2^-52: never 0, never 1.
  double unit(uint64_t index, uint64_t draw = 0) const;
  /// Uniform over 0 .. bound - 1, bound >= 1; the bias is at most bound * 2^-64.
  uint64_t below(uint64_t bound, uint64_t index) const;
  /// Exponential with mean 1.
  double exponential(uint64_t index) const;
  /// Gamma with the given shape > 0 and scale 1 (mean = variance = shape).
  /// Source: Marsaglia and Tsang, ACM TOMS 26 (2000); 1.05 attempts on average.
  double gamma(double shape, uint64_t index) const;

 private:
  uint64_t seed_;
  uint64_t stream_;
};

}  // namespace loratory::sim
