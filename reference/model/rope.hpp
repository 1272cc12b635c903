#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>

#include "reference/base/input_error.hpp"
#include "reference/model/kernels.hpp"
#include "reference/model/model_config.hpp"

// Rotary position embedding: pair (i, i + D/2) of a head of size D turns by position · f_i.
// Order    as transformers computes it, each step rounded to Real.
// Source   Su et al. 2021 (RoFormer); transformers, modeling_rope_utils.py.

namespace loratory::reference {

/// The corners of YaRN's ramp, as indices of frequencies; in double, as transformers has them.
struct YarnRange {
  double low = 0, high = 0;
};
YarnRange yarn_range(const RopeConfig& config, int64_t head_dim);

/// What cos and sin are multiplied with: 1 except for YaRN, there 0.1·ln(factor) + 1 unless the
/// configuration says otherwise.
double rope_attention_factor(const RopeConfig& config);

/// theta^(2i/D), i < D/2: the wavelengths, up to 2·pi.
template <typename Real>
Vector<Real> rope_periods(double theta, int64_t head_dim) {
  using std::pow;
  Vector<Real> out(head_dim / 2);
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    out(i) = pow(constant<Real>(theta), Real(Real(double(2 * i)) / Real(double(head_dim))));
  }
  return out;
}

/// `v` in [0, 1].
template <typename Real>
Real clamp_to_unit(const Real& v) {
  using std::max;
  using std::min;
  return min(max(v, Real(0)), Real(1));
}

/// llama3: frequencies of long waves divided by factor, those of short ones kept, a linear blend
/// between. transformers picks the three cases by comparison; the clamped blend gives the same
/// numbers.
template <typename Real>
Real llama3_frequency(const RopeConfig& config, const Real& f) {
  const Real two_pi = constant<Real>(2 * M_PI);
  const Real low = constant<Real>(config.low_freq_factor);
  const Real span = constant<Real>(config.high_freq_factor - config.low_freq_factor);
  const auto original = Real(double(config.original_max_position_embeddings));
  const Real smooth = clamp_to_unit(Real((original / (two_pi / f) - low) / span));
  return (Real(1) - smooth) * f / constant<Real>(config.factor) + smooth * f;
}

/// YaRN: the blend runs over the index i.
template <typename Real>
Real yarn_frequency(const RopeConfig& config, const YarnRange& range, int64_t i,
                    const Real& period) {
  const double width = range.low == range.high ? 0.001 : range.high - range.low;
  const Real ramp =
      clamp_to_unit(Real((Real(double(i)) - constant<Real>(range.low)) / constant<Real>(width)));
  const Real keep = Real(1) - ramp;
  const Real slow = Real(1) / (constant<Real>(config.factor) * period);
  return slow * (Real(1) - keep) + Real(1) / period * keep;
}

/// f_i in radians per position, i < D/2.
template <typename Real>
Vector<Real> rope_frequencies(const RopeConfig& config, int64_t head_dim) {
  Vector<Real> out = rope_periods<Real>(config.theta, head_dim);
  YarnRange range;
  if (config.scaling == RopeScaling::yarn) range = yarn_range(config, head_dim);
  for (int64_t i = 0; i < out.size(); ++i) {
    if (config.scaling == RopeScaling::yarn) {
      out(i) = yarn_frequency(config, range, i, out(i));
      continue;
    }
    out(i) = Real(1) / out(i);
    if (config.scaling == RopeScaling::linear) out(i) = out(i) / constant<Real>(config.factor);
    if (config.scaling == RopeScaling::llama3) out(i) = llama3_frequency(config, out(i));
  }
  return out;
}

/// cos and sin of the angles of some positions, times the attention factor; [D/2, positions].
template <typename Real>
struct Rotations {
  Matrix<Real> cos, sin;
};

/// Errors   InputError: a position of 2^24 or more, which float cannot count; with dynamic
///          scaling one beyond original_max_position_embeddings. There the frequencies would
///          depend on the length of the whole sequence, keys cached earlier would be wrong, and
///          engines disagree.
void check_positions(const RopeConfig& config, std::span<const int64_t> positions);

template <typename Real>
Rotations<Real> rotations(const RopeConfig& config, int64_t head_dim,
                          std::span<const int64_t> positions) {
  using std::cos;
  using std::sin;
  check_positions(config, positions);
  const Vector<Real> frequencies = rope_frequencies<Real>(config, head_dim);
  const bool factor_is_one = rope_attention_factor(config) == 1;
  const Real factor = constant<Real>(rope_attention_factor(config));
  Rotations<Real> out{Matrix<Real>(head_dim / 2, int64_t(positions.size())),
                      Matrix<Real>(head_dim / 2, int64_t(positions.size()))};
  for (int64_t t = 0; t < int64_t(positions.size()); ++t) {
    for (int64_t i = 0; i < frequencies.size(); ++i) {
      const Real angle = Real(double(positions[size_t(t)])) * frequencies(i);
      out.cos(i, t) = factor_is_one ? Real(cos(angle)) : Real(cos(angle) * factor);
      out.sin(i, t) = factor_is_one ? Real(sin(angle)) : Real(sin(angle) * factor);
    }
  }
  return out;
}

/// The same from float64, each number rounded once: the tables of an engine on a GPU.
template <typename Real>
Rotations<Real> tabled_rotations(const RopeConfig& config, int64_t head_dim,
                                 std::span<const int64_t> positions) {
  const auto exact = rotations<double>(config, head_dim, positions);
  const auto rounded = [](double v) { return constant<Real>(v); };
  return {exact.cos.unaryExpr(rounded), exact.sin.unaryExpr(rounded)};
}

/// Turns one head by rotation `t`.
template <typename Real>
void rotate(std::span<Real> head, const Rotations<Real>& by, int64_t t) {
  const size_t half = head.size() / 2;
  for (size_t i = 0; i < half; ++i) {
    const Real cos = by.cos(Eigen::Index(i), t), sin = by.sin(Eigen::Index(i), t);
    const Real first = head[i], second = head[i + half];
    head[i] = first * cos - second * sin;
    head[i + half] = second * cos + first * sin;
  }
}

}  // namespace loratory::reference
