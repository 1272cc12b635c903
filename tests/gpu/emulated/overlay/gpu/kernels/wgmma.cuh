#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <stdexcept>
#include <vector>

#include "gpu/kernels/ptx.cuh"

// gpu/kernels/wgmma.cuh for an emulated GPU. A product reads shared memory when it is started, and
// once more when it is waited for: what it read must be the same. Until then its sums are NaN, and
// nobody may write them.

namespace loratory::gpu {

inline void sync_warpgroup(int warpgroup) { emulated::sync_some(1 + warpgroup, 128); }
inline void fence_async_proxy() {}

/// In units of 16 bytes: in the lower half where the rows begin, above how far eight rows are from
/// the next eight. As the real one, which has the swizzle as well.
inline uint64_t matrix_descriptor(const std::byte* rows) {
  if (shared_address(rows) % 1024 != 0) throw std::runtime_error("wgmma: rows are not aligned");
  return shared_address(rows) / 16 | uint64_t{1024 / 16} << 32;
}

template <int kColumns>
using WgmmaSums = float[kColumns / 2];

inline void fence_wgmma() {}

inline constexpr int kMostSums = 128;  // of a thread, of 256 columns

struct WgmmaInFlight {
  void (*run)(const WgmmaInFlight& of, float* sums);
  float* sums;
  int num_sums;
  uint64_t a, b;
  bool adds;
  float before[kMostSums] = {}, after[kMostSums] = {};
  // Of multiply_weights(): the operand in registers, and its numbers.
  const uint4* weights = nullptr;
  uint4 weights_before{};
  double left[2][16] = {};
};
/// A thread's, of each commit; the last are not committed.
using WgmmaGroups = std::deque<std::vector<WgmmaInFlight>>;
/// Of the thread that runs now.
inline WgmmaGroups& wgmma_in_flight() {
  static std::map<const void*, WgmmaGroups> all;
  WgmmaGroups& mine = all[&emulated::current()];
  if (mine.empty()) mine.emplace_back();
  return mine;
}

/// Where number k of a row is, 0 to 15, before the swizzle.
inline uint64_t wgmma_place(uint64_t matrix, int row, int k) {
  const uint64_t eight_rows = matrix >> 32;
  return (matrix & 0xFFFFFFFF) * 16 + uint64_t(row / 8) * eight_rows * 16 +
         uint64_t(row % 8) * 128 + uint64_t(k) * 2;
}
/// Also the rows whose results nobody uses are read.
inline void check_rows(uint64_t matrix, int num_rows) {
  const uint64_t end = wgmma_place(matrix, num_rows - 1, 0) / 128 * 128 + 128;
  if (end > emulated::launched().shared_bytes) {
    throw std::runtime_error("wgmma: reads beyond shared memory");
  }
}
template <typename Weight>
double wgmma_number(uint64_t matrix, int row, int k) {
  const uint64_t at = wgmma_place(matrix, row, k);
  uint16_t bits = 0;
  std::memcpy(&bits, emulated::current().shared + (at ^ (at / 128 % 8 * 16)), sizeof bits);
  return number_of<Weight>(bits, 0);
}
/// The rows of an operand with meaning.
inline int meant_rows(uint64_t matrix) {
  const auto& rows_at = emulated::launched().wgmma_rows;
  return rows_at ? std::min(64, rows_at((matrix & 0xFFFFFFFF) * 16)) : 64;
}
/// Of a thread's first number; the other row is eight below.
inline int wgmma_row() { return int(threadIdx.x) / 32 % 4 * 16 + lane_id() / 4; }
template <typename Weight, int kCount>
void wgmma_now(const WgmmaInFlight& of, float* sums) {
  const int row = wgmma_row(), rows = meant_rows(of.a);
  const int columns = emulated::launched().wgmma_columns;
  std::fill(sums, sums + kCount, std::numeric_limits<float>::quiet_NaN());
  if (row >= rows) return;
  double left[2][16], right[16];
  for (int k = 0; k < 16; ++k) {
    for (int i = 0; i < 2; ++i) left[i][k] = wgmma_number<Weight>(of.a, row + 8 * i, k);
  }
  for (int n = 0; n < kCount / 2; ++n) {
    const int column = n / 2 * 8 + lane_id() % 4 * 2 + n % 2;
    if (column >= columns) continue;
    for (int k = 0; k < 16; ++k) right[k] = wgmma_number<Weight>(of.b, column, k);
    for (int i = 0; i < 2 && row + 8 * i < rows; ++i) {
      const int at = n / 2 * 4 + 2 * i + n % 2;
      double sum = of.adds ? of.before[at] : 0;
      for (int k = 0; k < 16; ++k) sum += left[i][k] * right[k];
      sums[at] = float(sum);
    }
  }
}

/// The last product that adds to these sums and is not waited for.
inline const WgmmaInFlight* last_of(const float* sums) {
  const WgmmaInFlight* last = nullptr;
  for (const auto& group : wgmma_in_flight()) {
    for (const WgmmaInFlight& of : group) last = of.sums == sums ? &of : last;
  }
  return last;
}
inline void start_wgmma(WgmmaInFlight of) {
  const WgmmaInFlight* const last = last_of(of.sums);
  std::copy_n(last == nullptr ? of.sums : last->after, of.num_sums, of.before);
  of.run(of, of.after);
  std::memset(of.sums, 0xFF, sizeof(float) * size_t(of.num_sums));
  wgmma_in_flight().back().push_back(of);
}
template <typename Weight, int kCount>
void wgmma(float (&c)[kCount], uint64_t a, uint64_t b, bool adds) {
  check_rows(a, 64);
  check_rows(b, 2 * kCount);
  static_assert(kCount <= kMostSums);
  start_wgmma({&wgmma_now<Weight, kCount>, c, kCount, a, b, adds});
}
inline void commit_wgmma() { wgmma_in_flight().emplace_back(); }
inline void check_operands(const WgmmaInFlight& of) {
  if (of.weights != nullptr && std::memcmp(of.weights, &of.weights_before, sizeof(uint4)) != 0) {
    throw std::runtime_error("wgmma: weights have changed");
  }
  if (lane_id() % 9 != 0) return;  // four lanes read all columns and half of the rows
  float again[kMostSums];
  of.run(of, again);
  if (std::memcmp(again, of.after, sizeof(float) * size_t(of.num_sums)) != 0) {
    throw std::runtime_error("wgmma: an operand has changed");
  }
}
inline void end_wgmma(const WgmmaInFlight& of) {
  check_operands(of);
  const auto* const bytes = reinterpret_cast<const std::byte*>(of.sums);
  const size_t size = sizeof(float) * size_t(of.num_sums);
  if (std::any_of(bytes, bytes + size, [](std::byte b) { return b != std::byte{0xFF}; })) {
    throw std::runtime_error("wgmma: sums were written before they were waited for");
  }
  if (last_of(of.sums) == &of) std::copy_n(of.after, of.num_sums, of.sums);
}
template <int kOpen>
void wait_for_older_wgmma() {
  WgmmaGroups& groups = wgmma_in_flight();
  if (groups.size() > kOpen + 1) emulated::pause();
  for (; groups.size() > kOpen + 1; groups.pop_front()) {
    for (const WgmmaInFlight& of : groups.front()) end_wgmma(of);
  }
}
inline void wait_for_wgmma_of(const float* c, const float* too) {
  for (const auto& group : wgmma_in_flight()) {
    for (const WgmmaInFlight& of : group) {
      if (of.sums != c && of.sums != too) throw std::runtime_error("wgmma: other sums");
    }
  }
  wait_for_older_wgmma<0>();
}
template <int kCount>
void wait_for_wgmma(float (&c)[kCount]) {
  wait_for_wgmma_of(c, c);
}
template <int kCount, int kCountToo>
void wait_for_wgmma(float (&c)[kCount], float (&too)[kCountToo]) {
  wait_for_wgmma_of(c, too);
}

/// Ends c's products alone, though the real one waits for all: sums that nobody named stay NaN, as
/// a compiler may take them from registers before the wait.
template <int kCount>
void wait_for_sums(float (&c)[kCount]) {
  emulated::pause();
  WgmmaGroups& groups = wgmma_in_flight();
  for (auto& group : groups) {
    for (const WgmmaInFlight& of : group) {
      if (of.sums == c) end_wgmma(of);
    }
  }
  for (auto& group : groups) {
    std::erase_if(group, [&](const WgmmaInFlight& of) { return of.sums == c; });
  }
  while (groups.size() > 1 && groups.front().empty()) groups.pop_front();
}

}  // namespace loratory::gpu
