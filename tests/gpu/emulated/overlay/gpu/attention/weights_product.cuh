#pragma once

#include "gpu/kernels/wgmma.cuh"

// gpu/attention/weights_product.cuh for an emulated GPU.

namespace loratory::gpu {

/// As matrix_descriptor() has it; above, how far 64 columns are from the next 64.
inline uint64_t values_descriptor(const std::byte* rows, uint32_t panel_bytes) {
  if (shared_address(rows) % 1024 != 0) throw std::runtime_error("values: not aligned");
  return shared_address(rows) / 16 | uint64_t{panel_bytes / 16} << 32;
}

template <typename T>
double value_number(uint64_t v, int key, int column) {
  const uint64_t at = (v & 0xFFFFFFFF) * 16 + uint64_t(column / 64) * (v >> 32) * 16 +
                      uint64_t(key) * 128 + uint64_t(column % 64) * 2;
  if (at + 2 > emulated::launched().shared_bytes) {
    throw std::runtime_error("values: read beyond shared memory");
  }
  uint16_t bits = 0;
  std::memcpy(&bits, emulated::current().shared + (at ^ (at / 128 % 8 * 16)), sizeof bits);
  return number_of<T>(bits, 0);
}

template <typename T, int kCount>
void multiply_weights_now(const WgmmaInFlight& of, float* sums) {
  for (int n = 0; n < kCount / 2; ++n) {
    const int column = n / 2 * 8 + lane_id() % 4 * 2 + n % 2;
    double right[16];
    for (int k = 0; k < 16; ++k) right[k] = value_number<T>(of.b, k, column);
    for (int i = 0; i < 2; ++i) {
      const int at = n / 2 * 4 + 2 * i + n % 2;
      double sum = of.adds ? of.before[at] : 0;
      for (int k = 0; k < 16; ++k) sum += of.left[i][k] * right[k];
      sums[at] = float(sum);
    }
  }
}

template <typename T, int kCount>
void multiply_weights(float (&c)[kCount], const uint4& w, uint64_t v, bool adds) {
  uint4 all[32];
  emulated::exchange(&w, sizeof w, all);
  WgmmaInFlight of{&multiply_weights_now<T, kCount>, c, kCount, 0, v, adds};
  of.weights = &w, of.weights_before = w;
  for (int k = 0; k < 16; ++k) {
    const uint4& from = all[lane_id() / 4 * 4 + k % 8 / 2];
    of.left[0][k] = number_of<T>(k < 8 ? from.x : from.z, k % 2);
    of.left[1][k] = number_of<T>(k < 8 ? from.y : from.w, k % 2);
  }
  start_wgmma(of);
}
template <int kCount>
void wait_for_product(float (&)[kCount]) {
  wait_for_older_wgmma<0>();
}
inline void wait_for_all_but_last(float (&)[32]) { wait_for_older_wgmma<1>(); }

template <int kRegisters>
void take_registers() {}
template <int kRegisters>
void give_registers() {}

}  // namespace loratory::gpu
