#include "check/cases/fill.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "check/cases/draw.hpp"

namespace loratory::check {

using reference::Dtype;
using reference::Extents;
using reference::Tensor;

namespace {

double small_integer(Operand operand, Dtype dtype, uint64_t i) {
  if (is_quantized(dtype)) return double(int(i % 5) - 2);
  switch (operand) {  // h and y need more bits than bf16
    case Operand::x:
      return double(int(i % 17) - 8);
    case Operand::y:
    case Operand::h:
      return double(int(i % 129) - 64);
    case Operand::weight:
      break;
  }
  return double(int(i % 3) - 1);
}

double tiny_number(Dtype dtype, double real, uint64_t i) {
  const int lowest = dtype == Dtype::f16 ? -24 : dtype == Dtype::f32 ? -120 : -80;
  return std::ldexp(real, lowest / 2 + int(i * 7 % 12) - 6);
}

double palette_number(Fill fill, Operand operand, Dtype dtype, uint64_t i) {
  const double real = (double(i) - 2047.5) / 1024;
  const bool is_weight = operand == Operand::weight;
  if (fill == Fill::small_integers) return small_integer(operand, dtype, i);
  if (dtype == Dtype::i8) return std::nearbyint(real * 60);
  if (is_quantized(dtype)) return real * 8;
  switch (fill) {
    case Fill::cancellation:  // the sign of x comes later
      return is_weight ? 1 + real * 0x1p-7 : 1 + std::fabs(real);
    case Fill::tiny:
      return tiny_number(dtype, real, i);
    case Fill::outliers:
      if (operand == Operand::x && i % 128 == 77) return real * 64;
      break;
    default:
      break;
  }
  return is_weight ? real / 4 : real;  // results stay far from the end of f16
}

}  // namespace

std::string_view name(Fill fill) {
  constexpr std::array<std::string_view, 5> kNames{"ints", "reals", "cancel", "tiny", "outliers"};
  return kNames[size_t(fill)];
}

const Palette& palette(Fill fill, Operand operand, Dtype dtype) {
  static std::mutex mutex;
  static std::map<std::tuple<Fill, Operand, Dtype>, std::unique_ptr<Palette>> made;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Palette>& found = made[{fill, operand, dtype}];
  if (found) return *found;
  found = std::make_unique<Palette>();
  found->is_paired = fill == Fill::cancellation && operand == Operand::x && !is_quantized(dtype);
  for (uint64_t i = 0; i < found->bits.size(); ++i) {
    found->bits[i] = encode(dtype, palette_number(fill, operand, dtype, i));
  }
  return *found;
}

void fill_row(const NumberStream& from, const Palette& palette, Dtype dtype, std::byte* begin,
              int64_t count) {
  const bool in_pairs = palette.is_paired;
  const uint32_t sign = dtype == Dtype::f32 ? 0x80000000U : 0x8000U;
  const size_t size = size_bytes(dtype);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t place = from.first + uint64_t(i);
    const uint64_t at = random_bits(from.seed, from.stream, in_pairs ? place / 2 : place) >> 20;
    uint32_t bits = palette.bits[at % palette.bits.size()];
    if (in_pairs && place % 2 == 1) bits ^= sign;
    std::memcpy(begin + size_t(i) * size, &bits, size);
  }
}

void poison(Dtype dtype, std::byte* begin, int64_t count) {
  // Of no numbers `begin` may be null, which memset() must not be given.
  std::fill_n(begin, size_t(count) * size_bytes(dtype),
              dtype == Dtype::i8 ? std::byte{0x7F} : std::byte{0xFF});
}

void poison_signalling(Dtype dtype, std::byte* begin, int64_t count) {
  const uint32_t bits = dtype == Dtype::f32 ? 0x7F810000U : dtype == Dtype::f16 ? 0x7C10U : 0x7F81U;
  const size_t size = size_bytes(dtype);
  for (int64_t i = 0; i < count; ++i) std::memcpy(begin + size_t(i) * size, &bits, size);
}

Tensor poisoned_tensor(Dtype dtype, const Extents& shape, int64_t gap) {
  Extents strides(shape.size(), 1);
  int64_t stride = shape.empty() ? 1 : shape.back() + gap;
  for (size_t axis = shape.size(); axis > 1; --axis) {
    strides[axis - 2] = stride;
    stride *= shape[axis - 2];
  }
  Tensor out(dtype, shape, strides);
  poison(dtype, out.bytes().data(), int64_t(out.bytes().size() / size_bytes(dtype)));
  return out;
}

}  // namespace loratory::check
