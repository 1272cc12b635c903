#include "scheduler_sim/metrics/duration_text.hpp"

#include <fmt/format.h>

namespace loratory::sim {
namespace {

std::string three_digits(double value) {
  return value < 100 ? fmt::format("{:.3g}", value) : fmt::format("{:.0f}", value);
}

}  // namespace

std::string duration_text(double ms) {
  if (ms < 1000) return three_digits(ms) + " ms";
  return ms < 120'000 ? three_digits(ms / 1000) + " s" : three_digits(ms / 60'000) + " min";
}

std::string factor_text(double factor) {
  return factor < 10 ? fmt::format("{:.1f}x", factor) : fmt::format("{:.0f}x", factor);
}

}  // namespace loratory::sim
