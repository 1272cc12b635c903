#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

namespace loratory {

/// The parts of `text` between `separator`s; at least one, which may be empty.
/// Lifetime: the parts point into `text`.
std::vector<std::string_view> split(std::string_view text, char separator);

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Equal but for the case of ASCII letters.
bool equal_ignoring_case(std::string_view a, std::string_view b);

/// The whole of `text` as one number; nothing if it is not one or does not fit. Integers have an
/// optional '-' and digits, floating-point numbers what std::from_chars takes (also "inf", "nan").
template <typename T>
std::optional<T> to_number(std::string_view text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && rest == end ? std::optional(value) : std::nullopt;
}

}  // namespace loratory
