#include "reference/numerics/rows.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

namespace loratory::reference {
namespace {

// float -> bits of a narrower format, to nearest even; what encode() gives.

constexpr uint32_t kInfinity = 0x7F80'0000;

struct F32 {
  using Bits = uint32_t;
  static float decode(Bits bits) { return std::bit_cast<float>(bits); }
  static Bits encode(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    return (bits & ~(1U << 31)) > kInfinity ? (bits & (1U << 31)) | 0x7FC0'0000 : bits;
  }
};

struct Bf16 {
  using Bits = uint16_t;
  static float decode(Bits bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }
  static Bits encode(float value) {
    const uint32_t bits = F32::encode(value);
    // Half a unit less one, and one more if the last bit that stays is odd: a tie goes to even.
    // Carries run into the exponent and at its end into infinity; a quiet NaN has no low bits.
    return Bits((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }
};

struct F16 {
  using Bits = uint16_t;
  static float decode(Bits bits) {
    const uint32_t magnitude = uint32_t(bits & 0x7FFF) << 13;
    // The exponent's bias differs by 112; the product is exact, for subnormal numbers too.
    const float value = magnitude < 0x0F80'0000 ? std::bit_cast<float>(magnitude) * 0x1p112F
                                                : std::bit_cast<float>(magnitude | kInfinity);
    return (bits & 0x8000) != 0 ? -value : value;
  }
  static Bits encode(float value) {
    const uint32_t bits = F32::encode(value), magnitude = bits & ~(1U << 31);
    return Bits((bits >> 16 & 0x8000) | encode_magnitude(magnitude));
  }
  static uint32_t encode_magnitude(uint32_t bits) {
    if (bits > kInfinity) return 0x7E00;
    if (bits >= 0x4780'0000) return 0x7C00;  // 65536 and more
    if (bits < 0x3880'0000) {                // below 2^-14: a unit of 0.5 is 2^-24, so + rounds
      return std::bit_cast<uint32_t>(std::bit_cast<float>(bits) + 0.5F) - 0x3F00'0000;
    }
    return (bits - (112U << 23) + 0xFFF + (bits >> 13 & 1)) >> 13;
  }
};

// All 256 numbers of the format.
template <Dtype kDtype>
struct OneByte {
  using Bits = uint8_t;
  static float decode(Bits bits) {
    static const std::array<float, 256> kNumbers = [] {
      std::array<float, 256> all{};
      for (uint32_t b = 0; b < 256; ++b) all[b] = float(reference::decode(kDtype, b));
      return all;
    }();
    return kNumbers[bits];
  }
  static Bits encode(float value) { return Bits(reference::encode(kDtype, value)); }
};

template <typename Function>
void with_format(Dtype dtype, Function function) {
  switch (dtype) {
    case Dtype::f32:
      return function(F32{});
    case Dtype::f16:
      return function(F16{});
    case Dtype::bf16:
      return function(Bf16{});
    case Dtype::f8_e4m3fn:
      return function(OneByte<Dtype::f8_e4m3fn>{});
    case Dtype::f8_e5m2:
      return function(OneByte<Dtype::f8_e5m2>{});
    case Dtype::i8:
      return function(OneByte<Dtype::i8>{});
  }
  LORATORY_ASSERT(false, "a dtype is one of the enumerators");
}

// function(i, address of element i); a constant distance lets the compiler vectorise.
template <size_t kSize, typename Byte, typename Function>
void for_each_address(Byte* address, int64_t stride, size_t count, Function function) {
  if (stride == 1) {
    for (size_t i = 0; i < count; ++i) function(i, address + i * kSize);
  } else {
    for (size_t i = 0; i < count; ++i) function(i, address + int64_t(i * kSize) * stride);
  }
}

// The address of element [row, first] of a view that has `count` columns from there on.
template <typename Byte>
Byte* row_address(const BasicTensorView<Byte>& view, int64_t row, int64_t first, size_t count) {
  LORATORY_ASSERT(first + int64_t(count) <= view.size(1), "a part of a row lies inside the row");
  return count == 0 ? nullptr : view.address(row, first);
}

}  // namespace

template <typename Real>
void load_elements(Dtype dtype, const std::byte* address, int64_t stride, std::span<Real> out) {
  with_format(dtype, [&]<typename Format>(Format) {
    using Bits = typename Format::Bits;
    Real* const to = out.data();
    for_each_address<sizeof(Bits)>(address, stride, out.size(), [to](size_t i, const auto* from) {
      Bits bits;
      std::memcpy(&bits, from, sizeof bits);
      to[i] = Format::decode(bits);
    });
  });
}
template void load_elements(Dtype, const std::byte*, int64_t, std::span<float>);
template void load_elements(Dtype, const std::byte*, int64_t, std::span<double>);

void store_elements(Dtype dtype, std::byte* address, int64_t stride,
                    std::span<const float> values) {
  with_format(dtype, [&]<typename Format>(Format) {
    using Bits = typename Format::Bits;
    const float* const from = values.data();
    for_each_address<sizeof(Bits)>(address, stride, values.size(), [from](size_t i, auto* to) {
      const Bits bits = Format::encode(from[i]);
      std::memcpy(to, &bits, sizeof bits);
    });
  });
}

void round_elements(Dtype dtype, std::span<float> values) {
  with_format(dtype, [&]<typename Format>(Format) {
    for (float& v : values) v = Format::decode(Format::encode(v));
  });
}

template <typename Real>
void read_row(const ConstTensorView& view, int64_t row, int64_t first, std::span<Real> out) {
  const std::byte* const address = row_address(view, row, first, out.size());
  load_elements(view.dtype, address, view.strides[1], out);
}
template void read_row(const ConstTensorView&, int64_t, int64_t, std::span<float>);
template void read_row(const ConstTensorView&, int64_t, int64_t, std::span<double>);

void write_row(const TensorView& view, int64_t row, int64_t first, std::span<const float> values) {
  std::byte* const address = row_address(view, row, first, values.size());
  store_elements(view.dtype, address, view.strides[1], values);
}

}  // namespace loratory::reference
