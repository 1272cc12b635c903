#include "scheduler_sim/trace/logs/python_text.hpp"

#include "scheduler_sim/trace/bad_row.hpp"

namespace loratory::sim {
namespace {

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

bool is_quote(char c) { return c == '\'' || c == '"'; }

// Behind the closing quote of the string that begins at text[at].
std::optional<size_t> string_end(std::string_view text, size_t at) {
  const char quote = text[at];
  for (size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == quote) {
      return i + 1;
    }
  }
  return std::nullopt;
}

bool opens(char c) { return c == '(' || c == '[' || c == '{'; }
bool closes(char c) { return c == ')' || c == ']' || c == '}'; }

// Where a key ends: at the first = or : outside of its quotes.
size_t key_end(std::string_view fields) {
  if (!fields.empty() && is_quote(fields[0])) {
    const auto end = string_end(fields, 0);
    return end ? fields.find_first_of("=:", *end) : std::string_view::npos;
  }
  return fields.find_first_of("=:");
}

std::string_view without_quotes(std::string_view key) {
  const bool is_quoted = key.size() >= 2 && is_quote(key.front()) && key.back() == key.front();
  return is_quoted ? key.substr(1, key.size() - 2) : key;
}

}  // namespace

std::optional<size_t> python_value_end(std::string_view text) {
  size_t depth = 0;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (is_quote(c)) {
      const auto end = string_end(text, i);
      if (!end) return std::nullopt;
      i = *end;
      continue;
    }
    if (depth == 0 && (c == ',' || closes(c))) return i;
    depth += opens(c) ? 1 : 0;
    depth -= closes(c) ? 1 : 0;
    ++i;
  }
  return depth == 0 ? std::optional(text.size()) : std::nullopt;
}

std::optional<std::string_view> python_field(std::string_view fields, std::string_view key) {
  while (!fields.empty()) {
    fields = trimmed(fields);
    const size_t separator = key_end(fields);
    if (separator == std::string_view::npos) return std::nullopt;
    const std::string_view name = without_quotes(trimmed(fields.substr(0, separator)));
    fields.remove_prefix(separator + 1);
    const auto end = python_value_end(fields);
    if (!end) return std::nullopt;
    if (name == key) return trimmed(fields.substr(0, *end));
    fields.remove_prefix(*end);
    if (!fields.empty()) fields.remove_prefix(1);
  }
  return std::nullopt;
}

std::optional<std::string_view> python_inside(std::string_view value) {
  const size_t open = value.find_first_of("([{");
  if (open == std::string_view::npos || value.empty() || !closes(value.back())) return std::nullopt;
  if (value.find_first_of("'\"") < open) return std::nullopt;  // a string
  return value.substr(open + 1, value.size() - open - 2);
}

std::optional<std::string> python_string(std::string_view value) {
  if (value.empty() || !is_quote(value[0]) || string_end(value, 0) != value.size()) {
    return std::nullopt;
  }
  std::string text;
  for (size_t i = 1; i + 1 < value.size(); ++i) {
    const bool is_escaped = value[i] == '\\' && (is_quote(value[i + 1]) || value[i + 1] == '\\');
    text += value[is_escaped ? ++i : i];
  }
  return text;
}

std::optional<uint32_t> python_length(std::string_view value) {
  auto inside = python_inside(value);
  if (!inside || !opens(value[0])) return std::nullopt;
  uint32_t count = 0;
  for (std::string_view rest = trimmed(*inside); !rest.empty(); rest = trimmed(rest)) {
    const auto end = python_value_end(rest);
    if (!end || *end == 0) return std::nullopt;
    ++count;
    if (*end == rest.size()) break;
    if (rest[*end] != ',') return std::nullopt;
    rest.remove_prefix(*end + 1);
  }
  return count;
}

void bad_python(size_t column) {
  bad_row(column, "a request that is cut off or has quotes and brackets that do not match",
          "check the log");
}

}  // namespace loratory::sim
