#include "scheduler_sim/report/html/scale.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace loratory::sim::report {
namespace {

double power_of_ten(int exponent) { return std::pow(10.0, exponent); }
int decade_of(double value) { return int(std::floor(std::log10(value) + 1e-9)); }

double round_step(double rough) {
  const double unit = power_of_ten(decade_of(rough));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * unit >= rough * 0.999) return factor * unit;
  }
  return 10 * unit;
}

std::vector<double> linear_ticks(double lo, double hi, int count) {
  const double step = round_step((hi - lo) / count);
  std::vector<double> ticks;
  const auto first = int64_t(std::ceil(lo / step - 1e-9));
  for (int64_t i = first; double(i) * step <= hi + step * 1e-9; ++i) {
    ticks.push_back(double(i) * step);
  }
  return ticks;
}

// 1, 2 and 5 of every decade, or the decades alone, or every second of them: what gives at most
// twice `count`.
std::vector<double> log_ticks(double lo, double hi, int count) {
  const auto ticks_of = [&](std::initializer_list<double> factors, int stride) {
    std::vector<double> ticks;
    for (int decade = decade_of(lo); decade <= decade_of(hi); decade += stride) {
      for (const double factor : factors) {
        const double tick = factor * power_of_ten(decade);
        if (tick >= lo * (1 - 1e-9) && tick <= hi * (1 + 1e-9)) ticks.push_back(tick);
      }
    }
    return ticks;
  };
  std::vector<double> ticks = ticks_of({1, 2, 5}, 1);
  for (int stride = 1; std::ssize(ticks) > 2 * count; ++stride) ticks = ticks_of({1}, stride);
  return ticks;
}

}  // namespace

Scale::Scale(double lo, double hi, double from, double to, bool log)
    : lo_(lo), hi_(hi), from_(from), to_(to), log_(log) {
  if (hi_ <= lo_) {
    lo_ = log_ ? lo / 2 : lo - 0.5;
    hi_ = log_ ? lo * 2 : lo + 0.5;
  }
}

double Scale::operator()(double value) const {
  const double clamped = std::clamp(value, lo_, hi_);
  const double share =
      log_ ? std::log(clamped / lo_) / std::log(hi_ / lo_) : (clamped - lo_) / (hi_ - lo_);
  return from_ + share * (to_ - from_);
}

std::vector<double> round_ticks(const Scale& scale, int count) {
  const bool spans_a_decade = scale.hi() >= 10 * scale.lo();
  return scale.log() && spans_a_decade ? log_ticks(scale.lo(), scale.hi(), count)
                                       : linear_ticks(scale.lo(), scale.hi(), count);
}

double round_up(double value) {
  if (value <= 0) return 1;
  const double step = round_step(value / 5);
  return std::ceil(value / step - 1e-9) * step;
}

}  // namespace loratory::sim::report
