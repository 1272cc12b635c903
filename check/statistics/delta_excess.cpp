#include "check/statistics/delta_excess.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace loratory::check {
namespace {

using reference::Dtype;
using reference::IntermediateMode;

double rounded(Dtype dtype, double v) {
  return dtype == Dtype::f32 ? double(float(v)) : round_to(dtype, v);
}

}  // namespace

ResultRounding::ResultRounding(const reference::Arithmetic& a)
    : rounds_delta_(a.mode.sum == reference::SumMode::two_round),
      kept_(a.mode.h == IntermediateMode::cast_to_weight ? a.weight : a.out),
      out_(a.out) {}

double ResultRounding::operator()(double base, double delta) const {
  const double kept = rounds_delta_ ? rounded(kept_, delta) : delta;
  return rounded(out_, double(float(base + kept)));
}

double ResultRounding::excess(const reference::DeltaModel& model, double got, double step) const {
  const double is = (*this)(model.base, model.delta);
  if (is == got) return 0;
  if (!std::isfinite(got)) return std::numeric_limits<double>::infinity();
  const double sign = got > is ? 1 : -1;
  const auto reaches = [&](double by) {
    return sign * ((*this)(model.base, model.delta + sign * by) - got) >= 0;
  };
  double low = 0, high = std::max(std::fabs(got - is) / 2, step);
  while (!reaches(high) && high < 1e300) low = high, high *= 2;
  for (int i = 0; i < 64 && high - low > step; ++i) {
    const double middle = (low + high) / 2;
    (reaches(middle) ? high : low) = middle;
  }
  return sign * low;
}

}  // namespace loratory::check
