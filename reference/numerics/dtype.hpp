#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace loratory::reference {

/// The number formats of weights, activations and results.
/// f8_e4m3fn has no infinity (NaN is 0x7F and 0xFF, largest 448); f8_e5m2 has (largest 57344).
/// i8 holds the integers -128..127 in two's complement: larger numbers always saturate, NaN becomes
/// 0, as a GPU converts.
enum class Dtype : uint8_t { f32, f16, bf16, f8_e4m3fn, f8_e5m2, i8 };

/// What a finite number becomes that rounds past the largest finite one: infinity (NaN in
/// f8_e4m3fn, which has none), or the largest finite number.
enum class Overflow : uint8_t { infinity, saturate };

std::string_view name(Dtype dtype);
size_t size_bytes(Dtype dtype);
bool is_f8(Dtype dtype);
/// fp8 or i8: numbers that mean something only together with a scale.
bool is_quantized(Dtype dtype);

/// u: |round(v) - v| <= u·|v| for every v in the normal range. 2^-24, 2^-11, 2^-8, 2^-4, 2^-3.
/// i8: 0, it has no normal range.
double unit_roundoff(Dtype dtype);

/// eta: |round(v) - v| <= eta below the normal range; half of the smallest positive number.
/// 2^-150, 2^-25, 2^-134, 2^-10, 2^-17. i8: 2^-1, everywhere.
double underflow_unit(Dtype dtype);

double largest_finite(Dtype dtype);

/// The number that the low size_bytes(dtype) bytes of `bits` stand for; exact, NaN for any NaN.
double decode(Dtype dtype, uint32_t bits);

/// The bits of the number nearest to `value`, ties to even; one rounding, subnormals included.
/// A NaN gives the quiet NaN of the format with the sign of `value`; payloads are not kept.
/// Saturating, infinities become the largest finite number too.
uint32_t encode(Dtype dtype, double value, Overflow overflow = Overflow::infinity);

/// decode(encode(value)): `value` as a tensor of this dtype would keep it.
double round_to(Dtype dtype, double value, Overflow overflow = Overflow::infinity);

}  // namespace loratory::reference
