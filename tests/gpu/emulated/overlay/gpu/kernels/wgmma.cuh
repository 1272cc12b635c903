#pragma once

#include <map>
#include <stdexcept>

#include "gpu/kernels/ptx.cuh"

// gpu/kernels/wgmma.cuh for an emulated GPU. A product reads shared memory when it is started, and
// once more when it is waited for: what it read must be the same.

namespace loratory::gpu {

inline void sync_warpgroup(int warpgroup) { emulated::sync_some(1 + warpgroup, 128); }
inline void fence_async_proxy() {}

/// Byte offsets in units of 16, as the real one has in its lower bits.
inline uint64_t matrix_descriptor(const std::byte* rows) {
  if (shared_address(rows) % 1024 != 0) throw std::runtime_error("wgmma: rows are not aligned");
  return shared_address(rows) / 16;
}

template <int kColumns>
using WgmmaSums = float[kColumns / 2];

inline void fence_wgmma() {}

struct WgmmaInFlight {
  void (*run)(const WgmmaInFlight& of, float* sums);
  float* sums;
  uint64_t a, b;
  bool adds;
  float before[32], after[32];
};
/// Of the thread that runs now.
inline std::vector<WgmmaInFlight>& wgmma_in_flight() {
  static std::map<const void*, std::vector<WgmmaInFlight>> all;
  return all[&emulated::current()];
}

/// Number k of a row, 0 to 15.
template <typename Weight>
double wgmma_number(uint64_t matrix, int row, int k) {
  const uint64_t at = matrix * 16 + uint64_t(row) * 128 + uint64_t(k) * 2;
  uint16_t bits = 0;
  std::memcpy(&bits, emulated::current().shared + (at ^ (at / 128 % 8 * 16)), sizeof bits);
  return number_of<Weight>(bits, 0);
}
template <typename Weight, int kCount>
void wgmma_now(const WgmmaInFlight& of, float* sums) {
  const int row = int(threadIdx.x) / 32 % 4 * 16 + lane_id() / 4;
  double left[2][16], right[16];
  for (int k = 0; k < 16; ++k) {
    for (int i = 0; i < 2; ++i) left[i][k] = wgmma_number<Weight>(of.a, row + 8 * i, k);
  }
  for (int n = 0; n < kCount / 2; ++n) {
    const int column = n / 2 * 8 + lane_id() % 4 * 2 + n % 2;
    for (int k = 0; k < 16; ++k) right[k] = wgmma_number<Weight>(of.b, column, k);
    for (int i = 0; i < 2; ++i) {
      const int at = n / 2 * 4 + 2 * i + n % 2;
      double sum = of.adds ? of.before[at] : 0;
      for (int k = 0; k < 16; ++k) sum += left[i][k] * right[k];
      sums[at] = float(sum);
    }
  }
}

template <typename Weight, int kCount>
void wgmma(float (&c)[kCount], uint64_t a, uint64_t b, bool adds) {
  WgmmaInFlight& of = wgmma_in_flight().emplace_back(
      WgmmaInFlight{&wgmma_now<Weight, kCount>, c, a, b, adds, {}, {}});
  std::copy(c, c + kCount, of.before);
  of.run(of, c);
  std::copy(c, c + kCount, of.after);
}
inline void commit_wgmma() {}
template <int kCount>
void wait_for_wgmma(float (&c)[kCount]) {
  std::vector<WgmmaInFlight>& all = wgmma_in_flight();
  for (const WgmmaInFlight& of : all) {
    if (of.sums != c) throw std::runtime_error("wgmma: other sums");
    if (lane_id() % 9 != 0) continue;  // four lanes read all columns and half of the rows
    float again[32];
    of.run(of, again);
    if (std::memcmp(again, of.after, sizeof c) != 0) {
      throw std::runtime_error("wgmma: an operand has changed");
    }
  }
  all.clear();
}

}  // namespace loratory::gpu
