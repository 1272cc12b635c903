#include "scheduler_sim/workload/deterministic_math.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "reference/base/check.hpp"

namespace loratory::sim {
namespace {

// ln 2 in two parts: the high one has 32 significant bits, so that k * kLn2High is exact for |k| <
// 2^20.
constexpr double kLn2High = 6.93147180369123816490e-01;
constexpr double kLn2Low = 1.90821492927058770002e-10;
constexpr double kSqrt2 = 1.41421356237309504880;
constexpr double kPi = 3.14159265358979323846;

template <size_t N>
double polynomial(const std::array<double, N>& coefficients, double x) {
  double sum = coefficients[N - 1];
  for (size_t i = N - 1; i-- > 0;) sum = sum * x + coefficients[i];
  return sum;
}

// x * 2^exponent in two steps, so that a subnormal result is rounded once.
double scale(double x, int exponent) {
  const auto power = [](int e) { return std::bit_cast<double>(uint64_t(e + 1023) << 52); };
  const int half = exponent / 2;
  return x * power(half) * power(exponent - half);
}

// AS 241's rational function for the central part, |p - 1/2| <= 0.425.
double normal_quantile_center(double q) {
  static constexpr std::array<double, 8> kNumerator = {
      3.3871328727963666080e0,  1.3314166789178437745e+2, 1.9715909503065514427e+3,
      1.3731693765509461125e+4, 4.5921953931549871457e+4, 6.7265770927008700853e+4,
      3.3430575583588128105e+4, 2.5090809287301226727e+3};
  static constexpr std::array<double, 8> kDenominator = {1.0,
                                                         4.2313330701600911252e+1,
                                                         6.8718700749205790830e+2,
                                                         5.3941960214247511077e+3,
                                                         2.1213794301586595867e+4,
                                                         3.9307895800092710610e+4,
                                                         2.8729085735721942674e+4,
                                                         5.2264952788528545610e+3};
  const double r = 0.180625 - q * q;
  return q * polynomial(kNumerator, r) / polynomial(kDenominator, r);
}

// AS 241's rational functions for the tails, at r = sqrt(-log(min(p, 1 - p))).
double normal_quantile_tail(double r) {
  static constexpr std::array<double, 8> kNearNumerator = {
      1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
      3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
      2.27238449892691845833e-2, 7.74545014278341407640e-4};
  static constexpr std::array<double, 8> kNearDenominator = {1.0,
                                                             2.05319162663775882187e0,
                                                             1.67638483018380384940e0,
                                                             6.89767334985100004550e-1,
                                                             1.48103976427480074590e-1,
                                                             1.51986665636164571966e-2,
                                                             5.47593808499534494600e-4,
                                                             1.05075007164441684324e-9};
  static constexpr std::array<double, 8> kFarNumerator = {
      6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,
      2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
      2.71155556874348757815e-5, 2.01033439929228813265e-7};
  static constexpr std::array<double, 8> kFarDenominator = {1.0,
                                                            5.99832206555887937690e-1,
                                                            1.36929880922735805310e-1,
                                                            1.48753612908506148525e-2,
                                                            7.86869131145613259100e-4,
                                                            1.84631831751005468180e-5,
                                                            1.42151175831644588870e-7,
                                                            2.04426310338993978564e-15};
  return r <= 5.0 ? polynomial(kNearNumerator, r - 1.6) / polynomial(kNearDenominator, r - 1.6)
                  : polynomial(kFarNumerator, r - 5.0) / polynomial(kFarDenominator, r - 5.0);
}

}  // namespace

double det_log(double x) {
  LORATORY_ASSERT(x > 0 && x <= std::numeric_limits<double>::max(), "log needs a finite x > 0");
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // exact: m in [1/2, 1)
  if (m < kSqrt2 / 2) {
    m = m * 2;
    --exponent;
  }
  // log(m) = 2 atanh(s), |s| <= 0.1716: the first term left out is below 2^-55 of the sum.
  const double s = (m - 1) / (m + 1);
  const double z = s * s;
  double series = 0;
  for (int k = 23; k >= 3; k -= 2) series = (series + 1.0 / k) * z;
  const double log_m = 2 * s + 2 * s * series;
  return exponent * kLn2High + (exponent * kLn2Low + log_m);
}

double det_exp(double x) {
  LORATORY_ASSERT(x == x, "exp needs a number");
  if (x > 709.782712893384) return std::numeric_limits<double>::infinity();
  if (x < -745.2) return 0;
  const auto k = int(std::floor(x / (kLn2High + kLn2Low) + 0.5));
  const double r = (x - k * kLn2High) - k * kLn2Low;
  // Taylor to degree 13: |r| <= 0.3466, so the first term left out is below 2^-57.
  double series = 1;
  for (int n = 13; n >= 2; --n) series = 1 + series * r / n;
  return scale(1 + r * series, k);
}

double det_pow(double base, double exponent) {
  LORATORY_ASSERT(base >= 0, "pow needs a base >= 0");
  if (exponent == 0) return 1;
  if (base == 0) return exponent > 0 ? 0 : std::numeric_limits<double>::infinity();
  return det_exp(exponent * det_log(base));
}

double det_normal_quantile(double p) {
  LORATORY_ASSERT(p > 0 && p < 1, "a quantile needs 0 < p < 1");
  const double q = p - 0.5;
  if (q >= -0.425 && q <= 0.425) return normal_quantile_center(q);
  const double tail = q < 0 ? p : 1 - p;
  const double x = normal_quantile_tail(std::sqrt(-det_log(tail)));
  return q < 0 ? -x : x;
}

double det_gamma_function(double x) {
  LORATORY_ASSERT(x > 0 && x <= 100, "the gamma function is made for 0 < x <= 100");
  // gamma(x) = gamma(x + n) / (x (x+1) ... (x+n-1)), then Stirling's series where it is sharp.
  double product = 1;
  for (; x < 16; x += 1) product *= x;
  static constexpr std::array<double, 6> kStirling = {1.0 / 12,    -1.0 / 360, 1.0 / 1260,
                                                      -1.0 / 1680, 1.0 / 1188, -691.0 / 360360};
  const double correction = polynomial(kStirling, 1 / (x * x)) / x;
  const double log_gamma = (x - 0.5) * det_log(x) - x + correction;
  return std::sqrt(2 * kPi) * det_exp(log_gamma) / product;
}

}  // namespace loratory::sim
