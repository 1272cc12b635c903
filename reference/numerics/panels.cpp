#include "reference/numerics/panels.hpp"

#include <cstring>

#include "reference/numerics/rows.hpp"

namespace loratory::reference {
namespace {

constexpr int64_t kRows = Panels::kRows;

// out[v][i] of one panel and as many vectors as `Multiply` takes.
struct Place {
  const float* panel;
  int64_t num_columns;
  const float* vectors;
  float* out;
  int64_t out_stride;
};
using Multiply = void (*)(const Place&);

void multiply_one(const Place& at) {
  float sums[kRows] = {};
  for (int64_t j = 0; j < at.num_columns; ++j) {
    for (int64_t i = 0; i < kRows; ++i) sums[i] += at.panel[j * kRows + i] * at.vectors[j];
  }
  std::copy_n(sums, kRows, at.out);
}

#ifdef __x86_64__
// The same for several vectors, whose sums stay in registers. Lanes never meet, and AVX2 has no
// fused multiply-add (that is FMA, another extension), so the bits are those of multiply_one.
template <int kVectors>
__attribute__((target("avx2"))) void multiply_avx2(const Place& at) {
  using Lanes = float __attribute__((vector_size(32)));
  using Unaligned = float __attribute__((vector_size(32), aligned(4), may_alias));
  Lanes low[kVectors] = {}, high[kVectors] = {};
  for (int64_t j = 0; j < at.num_columns; ++j) {
    const auto* const column = reinterpret_cast<const Unaligned*>(at.panel + j * kRows);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      low[v] += column[0] * at.vectors[v * at.num_columns + j];
      high[v] += column[1] * at.vectors[v * at.num_columns + j];
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    std::memcpy(at.out + v * at.out_stride, &low[v], sizeof(Lanes));
    std::memcpy(at.out + v * at.out_stride + kRows / 2, &high[v], sizeof(Lanes));
  }
}
#endif

// What this machine does with four vectors at once, and with one.
struct Kernels {
  Multiply four = nullptr;  // nullptr: one after the other
  Multiply one = multiply_one;
};

Kernels kernels() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) return {multiply_avx2<4>, multiply_avx2<1>};
#endif
  return {};
}

}  // namespace

Panels read_panels(const ConstTensorView& view, int64_t num_rows, int64_t num_columns) {
  constexpr int64_t kColumns = 64;  // at a time, so that the transposition stays in the L1 cache
  Panels panels(num_rows, num_columns);
  float row[kColumns];
  for (int64_t p = 0; p < panels.num_panels(); ++p) {
    const int64_t rows_here = std::min(kRows, num_rows - p * kRows);
    for (int64_t first = 0; first < num_columns; first += kColumns) {
      const int64_t columns_here = std::min(kColumns, num_columns - first);
      for (int64_t i = 0; i < rows_here; ++i) {
        read_row(view, p * kRows + i, first, std::span(row, size_t(columns_here)));
        float* const to = panels.panel(p) + first * kRows + i;
        for (int64_t j = 0; j < columns_here; ++j) to[j * kRows] = row[j];
      }
    }
  }
  return panels;
}

Panels side_by_side_twice(const Panels& matrix) {
  const int64_t num_columns = matrix.num_columns(), size = num_columns * kRows;
  Panels twice(matrix.num_panels() * kRows, 2 * num_columns);
  for (int64_t p = 0; p < matrix.num_panels(); ++p) {
    std::copy_n(matrix.panel(p), size, twice.panel(p));
    std::copy_n(matrix.panel(p), size, twice.panel(p) + size);
  }
  return twice;
}

namespace {

void multiply_with(const Kernels& kernel, const Panels& matrix, const float* vectors,
                   int64_t num_vectors, float* out) {
  const int64_t num_columns = matrix.num_columns(), stride = matrix.num_panels() * kRows;
  for (int64_t v = 0; v < num_vectors;) {
    const bool four = kernel.four != nullptr && num_vectors - v >= 4;
    for (int64_t p = 0; p < matrix.num_panels(); ++p) {
      const Place at{matrix.panel(p), num_columns, vectors + v * num_columns,
                     out + v * stride + p * kRows, stride};
      four ? kernel.four(at) : kernel.one(at);
    }
    v += four ? 4 : 1;
  }
}

}  // namespace

void multiply_in_order(const Panels& matrix, const float* vectors, int64_t num_vectors,
                       float* out) {
  static const Kernels kBest = kernels();
  multiply_with(kBest, matrix, vectors, num_vectors, out);
}

void multiply_in_order_without_avx2(const Panels& matrix, const float* vectors, int64_t num_vectors,
                                    float* out) {
  multiply_with({}, matrix, vectors, num_vectors, out);
}

}  // namespace loratory::reference
