#include "scheduler_sim/trace/bad_escape.hpp"

#include <fmt/format.h>

#include <charconv>

#include "scheduler_sim/trace/row_fields.hpp"

namespace loratory::sim {
namespace {

constexpr size_t kShortChars = 2, kUnicodeChars = 6;  // \n, \u000a
constexpr uint32_t kNoUnit = 0xffff'ffff;

// Of the \u escape that begins `text`.
uint32_t code_unit(std::string_view text) {
  if (text.size() < kUnicodeChars || !text.starts_with("\\u")) return kNoUnit;
  const char* const end = text.data() + kUnicodeChars;
  uint32_t unit = 0;
  const auto [stop, error] = std::from_chars(text.data() + kShortChars, end, unit, 16);
  return error == std::errc() && stop == end ? unit : kNoUnit;
}

bool is_high_half(uint32_t unit) { return unit >= 0xd800 && unit < 0xdc00; }
bool is_low_half(uint32_t unit) { return unit >= 0xdc00 && unit < 0xe000; }

// Bytes of the escapes at the start of `text` that stand for one character; 0 if they do for none.
size_t escape_size(std::string_view text) {
  constexpr std::string_view kShort = "\"\\/bfnrt";
  if (text.size() > 1 && kShort.find(text[1]) != std::string_view::npos) return kShortChars;
  const uint32_t unit = code_unit(text);
  if (unit == kNoUnit || is_low_half(unit)) return 0;
  if (!is_high_half(unit)) return kUnicodeChars;
  return is_low_half(code_unit(text.substr(kUnicodeChars))) ? 2 * kUnicodeChars : 0;
}

BadRow refusal(std::string_view text, size_t column) {
  const bool is_half = code_unit(text) != kNoUnit;
  const size_t size = text.starts_with("\\u") ? kUnicodeChars : kShortChars;
  return {column,
          fmt::format("invalid JSON ({}: {})",
                      is_half ? "half of a surrogate pair" : "no escape of JSON",
                      excerpt(text.substr(0, size))),
          is_half ? "write both halves, or leave it out" : "write \\\\ for a backslash"};
}

}  // namespace

std::optional<BadRow> bad_escape(std::string_view json) {
  for (size_t at = json.find('\\'); at != std::string_view::npos; at = json.find('\\', at)) {
    const std::string_view rest = json.substr(at);
    const size_t size = escape_size(rest);
    if (size == 0) return refusal(rest, at + 1);
    at += size;
  }
  return std::nullopt;
}

}  // namespace loratory::sim
