#include "scheduler_sim/cost/quantity.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

#include "reference/base/input_error.hpp"

namespace loratory::sim {
namespace {

struct Prefix {
  std::string_view text;
  double factor;
};

// Two-letter prefixes first: "Gi" must not be read as "G" and a unit "i".
constexpr std::array<Prefix, 8> kPrefixes{{{"Ki", 1024.0},
                                           {"Mi", 1048576.0},
                                           {"Gi", 1073741824.0},
                                           {"Ti", 1099511627776.0},
                                           {"k", 1e3},
                                           {"M", 1e6},
                                           {"G", 1e9},
                                           {"T", 1e12}}};

double take_prefix(std::string_view& rest) {
  for (const Prefix& prefix : kPrefixes) {
    if (rest.starts_with(prefix.text)) {
      rest.remove_prefix(prefix.text.size());
      return prefix.factor;
    }
  }
  return 1.0;
}

}  // namespace

double parse_quantity(std::string_view text, std::string_view unit, std::string_view place) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view rest = text.substr(static_cast<size_t>(end - text.data()));
  const double value = number * take_prefix(rest);
  const bool unit_is_right = rest.empty() || rest == unit;
  if (error != std::errc{} || !unit_is_right || !std::isfinite(value) || value <= 0) {
    throw InputError(place, fmt::format("'{}' is not a positive quantity", text),
                     fmt::format("write a number with a prefix and unit, e.g. 80G{}", unit));
  }
  return value;
}

}  // namespace loratory::sim
