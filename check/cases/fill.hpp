#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "reference/numerics/tensor.hpp"

namespace loratory::check {

/// What the numbers of a case are.
enum class Fill : uint8_t {
  small_integers,  ///< every partial sum and result is exact in fp32
  reals,           ///< in (-2, 2), weights in (-1/2, 1/2)
  cancellation,    ///< pairs of x that cancel, weights nearly equal
  tiny,            ///< around the smallest numbers of the dtype
  outliers,        ///< reals, but one of x in 128 is 64 times as large
};
std::string_view name(Fill fill);

/// Which operand a number belongs to: a fill is not the same for all.
enum class Operand : uint8_t { x, weight, y, h };

/// 4096 numbers of a fill, encoded; a tensor takes them by random index.
struct Palette {
  std::array<uint32_t, 4096> bits{};
  bool is_paired = false;  ///< numbers 2i and 2i + 1 of a tensor are opposite
};

/// Made once for each combination; thread-safe.
const Palette& palette(Fill fill, Operand operand, reference::Dtype dtype);

/// Where numbers come from: number i is that of place `first + i`, whatever the others are.
struct NumberStream {
  uint64_t seed = 0, stream = 0, first = 0;
};
void fill_row(const NumberStream& from, const Palette& palette, reference::Dtype dtype,
              std::byte* begin, int64_t count);

/// NaN of every number, or 127 in i8, which has none: what nobody may read.
void poison(reference::Dtype dtype, std::byte* begin, int64_t count);
/// The same of wide dtypes, but signalling: whoever computes with it writes another NaN, which
/// tells him from one who wrote nothing.
void poison_signalling(reference::Dtype dtype, std::byte* begin, int64_t count);

/// All poison; rows of the innermost axis lie `gap` further apart than they are long.
reference::Tensor poisoned_tensor(reference::Dtype dtype, const reference::Extents& shape,
                                  int64_t gap = 0);

}  // namespace loratory::check
