#include "reference/adapter/path_pattern.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <regex>

#include "reference/adapter/adapter_error.hpp"

namespace loratory::reference {
namespace {

constexpr size_t kLongestPattern = 1024;
constexpr int64_t kMostRepetitions = 1000;
constexpr size_t kLongestPath = 1024;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_plain_char(char c) {
  return is_digit(c) || is_letter(c) || c == '_' || c == '-' || c == '.';
}

/// Why the two languages would disagree about `text`, or nullptr.
const char* foreign_syntax(std::string_view text) {
  bool in_class = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i);
    if (text[i] == '\0' || text[i] == '\n') return "a control character";
    if (text[i] == '\\') {
      const char next = ++i < text.size() ? text[i] : '\\';
      if (is_digit(next)) return "a back reference";
      if (is_letter(next) && std::string_view("dDwWsSbB").find(next) == std::string_view::npos) {
        return "an escape that only Python knows";
      }
    } else if (in_class) {
      if (rest.starts_with("[:") || rest.starts_with("[.") || rest.starts_with("[=")) {
        return "a POSIX class";
      }
      in_class = text[i] != ']';
    } else if (text[i] == '[') {
      if (rest.starts_with("[]") || rest.starts_with("[^]")) return "an empty class";
      in_class = true;
    } else if (rest.starts_with("(?") && !rest.starts_with("(?:")) {
      return "a group other than (...) and (?:...)";
    }
  }
  return nullptr;
}

/// The product of the numbers in braces bounds the size of the automaton.
bool repeats_too_often(std::string_view text) {
  int64_t product = 1;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '{') continue;
    int64_t largest = 1;
    int64_t number = 0;
    for (++i; i < text.size() && (is_digit(text[i]) || text[i] == ','); ++i) {
      number = text[i] == ',' ? 0 : std::min(number * 10 + (text[i] - '0'), kMostRepetitions + 1);
      largest = std::max(largest, number);
    }
    product *= largest;
    if (product > kMostRepetitions) return true;
  }
  return false;
}

std::regex compile(const std::string& text) {
  auto flags = std::regex::ECMAScript | std::regex::nosubs;
#ifdef __GLIBCXX__
  flags |= std::regex_constants::__polynomial;  // breadth first: no exponential backtracking
#endif
  return std::regex(text, flags);
}

}  // namespace

struct PathPattern::Compiled {
  std::regex whole;
  std::regex end;
};

PathPattern::PathPattern(std::string_view text, std::string_view field) : text_(text) {
  const auto fail = [&](std::string_view rule) {
    throw AdapterError(AdapterErrorCode::kConfig, field, text, rule, "");
  };
  if (text.size() > kLongestPattern) fail("a pattern of more than 1024 characters");
  if (is_plain()) return;
  if (const char* what = foreign_syntax(text)) fail(fmt::format("{} is not supported", what));
  if (repeats_too_often(text)) fail("repetitions of more than 1000 states");
  try {
    // On its own first: "a)(b" must not become valid inside the group.
    std::regex whole = compile(text_);
    std::regex end = compile("(?:.*\\.)?(?:" + text_ + ")");
    compiled_ = std::make_shared<const Compiled>(Compiled{std::move(whole), std::move(end)});
  } catch (const std::regex_error&) {
    fail("is not a regular expression");
  }
}

bool PathPattern::is_plain() const { return std::ranges::all_of(text_, is_plain_char); }

bool PathPattern::matches(std::string_view path) const {
  if (path.size() > kLongestPath) return false;
  if (compiled_) return std::regex_match(path.begin(), path.end(), compiled_->whole);
  // '.' stands for any character.
  return std::ranges::equal(text_, path, [](char p, char c) { return p == '.' || p == c; });
}

bool PathPattern::matches_end(std::string_view path) const {
  if (path.size() > kLongestPath) return false;
  if (compiled_) return std::regex_match(path.begin(), path.end(), compiled_->end);
  if (text_.size() > path.size()) return false;
  const size_t begin = path.size() - text_.size();
  return (begin == 0 || path[begin - 1] == '.') && matches(path.substr(begin));
}

bool names_path(std::string_view name, std::string_view path) {
  return path == name || (path.size() > name.size() && path.ends_with(name) &&
                          path[path.size() - name.size() - 1] == '.');
}

}  // namespace loratory::reference
