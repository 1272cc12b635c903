#pragma once

#include <rapidcheck.h>

#include <cstdint>
#include <random>

namespace loratory::sim {

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

/// A seed is drawn at full size from the first case on, and is not shrunk.
inline rc::Gen<uint64_t> seeds() {
  return rc::gen::noShrink(rc::gen::resize(rc::kNominalSize, rc::gen::arbitrary<uint64_t>()));
}

}  // namespace loratory::sim
