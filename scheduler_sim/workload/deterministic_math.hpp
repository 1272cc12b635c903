#pragma once

namespace loratory::sim {

/// Transcendental functions made of IEEE + - * / and sqrt alone, each correctly rounded everywhere.
///
/// libm may differ in the last bit between machines, and one bit in a gap moves every later arrival
/// of a generated trace. These give the same bits wherever doubles are IEEE 754 and the compiler
/// neither fuses nor reorders (the project builds with -ffp-contract=off).
/// Cost: tens of nanoseconds each. Pure; a domain error is a programmer error (LORATORY_ASSERT).

/// Natural logarithm of a finite x > 0; relative error <= 1e-15.
double det_log(double x);

/// e^x for any x that is not NaN; relative error <= 1e-15 for normal results, 0 below -745,
/// infinity above 709.78.
double det_exp(double x);

/// base^exponent for base >= 0; relative error about |exponent * log(base)| * 2e-16. 0^0 = 1.
double det_pow(double base, double exponent);

/// The x with P(standard normal <= x) = p, for 0 < p < 1; relative error <= 1e-14.
/// Source: Wichura, Algorithm AS 241 (PPND16), Applied Statistics 37 (1988).
double det_normal_quantile(double p);

/// The gamma function of x in (0, 100]; relative error <= 1e-13.
double det_gamma_function(double x);

}  // namespace loratory::sim
