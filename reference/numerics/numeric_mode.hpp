#pragma once

#include <cstdint>

namespace loratory::reference {

/// What h = x A^T is kept in between shrink and expand.
enum class IntermediateMode : uint8_t {
  fp32,            ///< the fp32 accumulator
  split2,          ///< hi + lo: hi = round_w(h), lo = round_w(h - hi), w the dtype of B
  cast_to_weight,  ///< an fp32 buffer, rounded to the dtype of B before it meets B
  store_as_x,      ///< a buffer of x's dtype
};

/// How delta meets base.
enum class SumMode : uint8_t {
  one_round,  ///< y = round_out(fp32(base) + d)
  two_round,  ///< y = round_out(base + round(d)): d is a tensor of its own
};

/// Where scaling is applied.
enum class ScaleMode : uint8_t {
  accumulator,  ///< d = scaling · sum, in fp32
  folded_b,     ///< B' = round_w(scaling · B), once
};

/// The rounding points of a LoRA delta, as data: which engine's numbers are wanted.
/// Source: statements [1.17].
struct NumericMode {
  IntermediateMode h = IntermediateMode::fp32;
  SumMode sum = SumMode::one_round;
  ScaleMode scale = ScaleMode::accumulator;

  friend bool operator==(const NumericMode&, const NumericMode&) = default;
};

inline constexpr NumericMode kDefaultMode{};
/// vLLM rounds delta to the dtype of the weights, which is that of y in all its layers.
inline constexpr NumericMode kVllmMode{IntermediateMode::cast_to_weight, SumMode::two_round,
                                       ScaleMode::folded_b};
inline constexpr NumericMode kSglangMode{IntermediateMode::store_as_x, SumMode::two_round,
                                         ScaleMode::accumulator};
inline constexpr NumericMode kTokenSpeedMode = kSglangMode;

}  // namespace loratory::reference
