#include "reference/base/escape.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>

namespace loratory {
namespace {

struct Character {
  uint32_t code = 0;
  size_t num_bytes = 0;  // 0: no UTF-8 character starts here
};

// The shortest code of each length: a smaller one is overlong and not UTF-8.
constexpr std::array<uint32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};

Character character_at(std::string_view text) {
  const auto lead = uint8_t(text[0]);
  if (lead < 0x80) return {lead, 1};
  const size_t num_bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc0 || lead >= 0xf8 || num_bytes > text.size()) return {};
  uint32_t code = lead & (0x7fu >> num_bytes);
  for (size_t i = 1; i < num_bytes; ++i) {
    if ((uint8_t(text[i]) & 0xc0) != 0x80) return {};
    code = code << 6 | (uint8_t(text[i]) & 0x3fu);
  }
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  if (code < kSmallest[num_bytes] || code > 0x10ffff || is_surrogate) return {};
  return {code, num_bytes};
}

struct Range {
  uint32_t first, last;
};

// Control characters, and what Unicode 15 calls Cf, Zl or Zp and shows no ink for.
constexpr auto kHidden = std::to_array<Range>({
    {0x00, 0x1f},
    {0x7f, 0x9f},
    {0xad, 0xad},
    {0x61c, 0x61c},
    {0x180e, 0x180e},
    {0x200b, 0x200f},
    {0x2028, 0x202e},
    {0x2060, 0x206f},
    {0xfeff, 0xfeff},
    {0xfff9, 0xfffb},
    {0x1d173, 0x1d17a},
    {0xe0000, 0xe0fff},
});

bool is_hidden(uint32_t code) {
  return std::ranges::any_of(
      kHidden, [code](const Range& range) { return code >= range.first && code <= range.last; });
}

void append_spelled(std::string& out, uint32_t code) {
  const auto end = std::back_inserter(out);
  if (code == '\n') {
    out += "\\n";
  } else if (code == '\r') {
    out += "\\r";
  } else if (code == '\t') {
    out += "\\t";
  } else if (code < 0x80) {
    fmt::format_to(end, "\\x{:02x}", code);
  } else if (code < 0x10000) {
    fmt::format_to(end, "\\u{:04x}", code);
  } else {
    fmt::format_to(end, "\\U{:08x}", code);
  }
}

// Calls good(bytes, code) for each character and bad(byte) for each byte that is none.
template <typename Good, typename Bad>
void for_each_character(std::string_view text, Good good, Bad bad) {
  while (!text.empty()) {
    const Character c = character_at(text);
    if (c.num_bytes == 0) {
      bad(uint8_t(text[0]));
    } else {
      good(text.substr(0, c.num_bytes), c.code);
    }
    text.remove_prefix(std::max<size_t>(c.num_bytes, 1));
  }
}

std::string_view entity(char c) {
  switch (c) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&quot;";
    case '\'':
      return "&#39;";
    default:
      return {};
  }
}

}  // namespace

std::string printable(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  for_each_character(
      text,
      [&](std::string_view bytes, uint32_t code) {
        if (is_hidden(code)) {
          append_spelled(shown, code);
        } else {
          shown += bytes;
        }
      },
      [&](uint8_t byte) { fmt::format_to(std::back_inserter(shown), "\\x{:02x}", byte); });
  return shown;
}

std::string_view cut(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  while (max_bytes > 0 && (uint8_t(text[max_bytes]) & 0xc0) == 0x80) --max_bytes;
  return text.substr(0, max_bytes);
}

std::string json_string(std::string_view text) {
  std::string quoted = "\"";
  for_each_character(
      text,
      [&](std::string_view bytes, uint32_t code) {
        if (code == '"' || code == '\\') quoted += '\\';
        if (code < 0x20) {
          fmt::format_to(std::back_inserter(quoted), "\\u{:04x}", code);
        } else {
          quoted += bytes;
        }
      },
      [&](uint8_t) { quoted += "\xef\xbf\xbd"; });
  return quoted + '"';
}

std::string csv_field(std::string_view text) {
  std::string shown = printable(text);
  const bool is_formula =
      !shown.empty() && std::string_view("=+-@").find(shown[0]) != std::string::npos;
  if (is_formula) shown.insert(0, 1, '\'');
  if (shown.find_first_of(",\"") == std::string::npos) return shown;
  std::string quoted = "\"";
  for (const char c : shown) quoted.append(c == '"' ? 2 : 1, c);
  return quoted + '"';
}

std::string html_text(std::string_view text) {
  std::string safe;
  safe.reserve(text.size());
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    for (const char c : printable(text.substr(begin, end - begin))) {
      const std::string_view name = entity(c);
      name.empty() ? safe += c : safe += name;
    }
    if (end < text.size()) safe += "&#10;";
    begin = end + 1;
  }
  return safe;
}

std::string html_name(std::string_view text) { return "<bdi>" + html_text(text) + "</bdi>"; }

std::string prometheus_label(std::string_view text) {
  std::string label;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    for (const char c : printable(text.substr(begin, end - begin))) {
      if (c == '\\' || c == '"') label += '\\';
      label += c;
    }
    if (end < text.size()) label += "\\n";
    begin = end + 1;
  }
  return label;
}

}  // namespace loratory
