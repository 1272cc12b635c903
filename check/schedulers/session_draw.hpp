#pragma once

#include <cstdint>
#include <initializer_list>

namespace loratory::check {

/// Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014
/// (SplitMix64's finaliser).
inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// Numbers in [0, below): a function of the seed, of what they are drawn for, and of how many were
/// drawn before. So an operation of a session draws the same whatever others are left out.
class SessionDraw {
 public:
  SessionDraw(uint64_t seed, uint64_t purpose) : state_(mix(seed) ^ mix(~purpose)) {}
  int64_t operator()(int64_t below) {
    state_ = mix(state_);
    return int64_t(state_ % uint64_t(below));
  }
  bool one_in(int64_t n) { return (*this)(n) == 0; }
  int64_t between(int64_t low, int64_t high) { return low + (*this)(high - low + 1); }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[(*this)(int64_t(values.size()))];
  }

 private:
  uint64_t state_;
};

}  // namespace loratory::check
