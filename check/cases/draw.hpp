#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>

namespace loratory::check {

/// Numbers in [0, below): mt19937_64 is the same on every machine, its distributions are not.
class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}
  int64_t operator()(int64_t below) { return int64_t(engine_() % uint64_t(below)); }
  bool one_in(int64_t n) { return (*this)(n) == 0; }
  int64_t between(int64_t low, int64_t high) { return low + (*this)(high - low + 1); }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[(*this)(int64_t(values.size()))];
  }

 private:
  std::mt19937_64 engine_;
};

/// f(seed, stream, index): the same on every machine and in any order.
inline uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index) {
  uint64_t z = seed;  // SplitMix64 over three words
  for (const uint64_t word : {stream, index}) {
    z += 0x9E3779B97F4A7C15ULL * (word + 1);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    z ^= z >> 31;
  }
  return z;
}

}  // namespace loratory::check
