#include "reference/adapter/path_pattern.hpp"

#include <fmt/format.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>

#include "reference/adapter/adapter_error.hpp"
#include "reference/base/text.hpp"

namespace loratory::reference {
namespace {

constexpr uint32_t kMostHeapKib = 64 << 10;

// Callouts count the steps. Without the shortcuts at the start of a match the machine code and the
// interpreter take the same number of them.
constexpr uint32_t kCompileOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF |
                                     PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_AUTO_CALLOUT |
                                     PCRE2_NO_START_OPTIMIZE;

template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using PatternCode = std::unique_ptr<pcre2_code, Free<pcre2_code_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_plain_char(char c) {
  return is_digit(c) || is_letter(c) || c == '_' || c == '-' || c == '.';
}
bool is_one_of(char c, std::string_view set) { return set.find(c) != std::string_view::npos; }

// `group` begins with "(?": "(?i:...)", or "(?i)" at the beginning of a pattern.
bool sets_flags(std::string_view group, bool at_the_beginning) {
  const size_t end = group.find_first_not_of("ims", 2);
  if (end == 2 || end == std::string_view::npos) return false;
  return group[end] == ':' || (group[end] == ')' && at_the_beginning);
}

bool is_known_group(std::string_view group, bool at_the_beginning) {
  if (group.starts_with("(*")) return false;
  if (!group.starts_with("(?")) return true;
  constexpr std::array<std::string_view, 7> kKnown{"(?:",  "(?=",  "(?!", "(?>",
                                                   "(?<=", "(?<!", "(?P<"};
  return sets_flags(group, at_the_beginning) ||
         std::ranges::any_of(kKnown,
                             [&](std::string_view known) { return group.starts_with(known); });
}

// \Z says more in PCRE2 only before a line feed, which no path has.
std::string foreign_escape(char escaped) {
  if (is_digit(escaped)) return "a back reference";
  const bool is_known = !is_letter(escaped) || is_one_of(escaped, "dDwWsSbBAZ");
  return is_known ? "" : fmt::format("'\\{}'", escaped);
}

// What stands in a pattern that only one of Python and PCRE2 knows, or that they read differently.
// Empty: nothing.
std::string foreign_syntax(std::string_view text) {
  bool in_class = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i);
    if (rest.starts_with('\\')) {
      std::string foreign = rest.size() > 1 ? foreign_escape(rest[1]) : "";
      if (!foreign.empty()) return foreign;
      ++i;
    } else if (in_class) {
      const bool is_posix =
          rest.starts_with("[:") || rest.starts_with("[.") || rest.starts_with("[=");
      if (is_posix) return "a POSIX class";
      in_class = text[i] != ']';
    } else if (text[i] == '[') {
      in_class = true;
      if (rest.starts_with("[^")) ++i;
      if (text.substr(i + 1).starts_with(']')) ++i;  // in the first place it is a character
    } else if (text[i] == '(' && !is_known_group(rest, i == 0)) {
      return fmt::format("'{}'", rest.substr(0, 4));
    } else if (rest.starts_with("{,")) {
      return "'{,n}' (for '{0,n}')";
    }
  }
  return "";
}

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 200> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

int count_step(pcre2_callout_block*, void* budget) {
  return --static_cast<StepBudget*>(budget)->steps_left < 0 ? PCRE2_ERROR_CALLOUT : 0;
}

// pcre2_match from `begin` to the end of the path.
int match(const pcre2_code* code, std::string_view path, size_t begin, uint32_t options,
          StepBudget& budget) {
  const MatchData data(pcre2_match_data_create(1, nullptr));
  const MatchContext context(pcre2_match_context_create(nullptr));
  if (!data || !context) return PCRE2_ERROR_NOMEMORY;
  pcre2_set_heap_limit(context.get(), kMostHeapKib);
  pcre2_set_callout(context.get(), count_step, &budget);
  return pcre2_match(code, units(path), path.size(), begin, options, data.get(), context.get());
}

}  // namespace

struct PathPattern::Compiled {
  PatternCode code;
};

PathPattern::PathPattern(std::string_view text, std::string_view field, Fit fit)
    : text_(text), field_(field), fit_(fit) {
  if (is_plain_pattern(text)) return;
  const std::string foreign = foreign_syntax(text);
  if (!foreign.empty()) fail(fmt::format("{} is not supported in a pattern", foreign));
  const CompileContext context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t offset = 0;
  PatternCode code(
      pcre2_compile(units(text), text.size(), kCompileOptions, &error, &offset, context.get()));
  if (!code) {
    fail(fmt::format("is not a regular expression: {} (byte {})", message_of(error), offset));
  }
  // Every module meets this pattern. Those of ranks are many and mostly fail at once, which does
  // not pay for the compilation. Where machine code cannot be made, the interpreter runs.
  if (fit == Fit::whole_path) pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  compiled_ = std::make_shared<const Compiled>(Compiled{std::move(code)});
}

bool PathPattern::matches(std::string_view path, StepBudget& budget) const {
  if (--budget.steps_left < 0) fail_for_work();
  if (!compiled_) return plain_matches(path);
  if (matches_from(path, 0, budget)) return true;
  if (fit_ == Fit::whole_path) return false;
  for (size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.', dot + 1)) {
    if (matches_from(path, dot + 1, budget)) return true;
  }
  return false;
}

bool PathPattern::plain_matches(std::string_view path) const {
  if (path.size() < text_.size()) return false;
  const size_t begin = path.size() - text_.size();
  const bool may_begin = begin == 0 || (fit_ == Fit::end && path[begin - 1] == '.');
  // '.' stands for any character.
  return may_begin && std::ranges::equal(text_, path.substr(begin),
                                         [](char p, char c) { return p == '.' || p == c; });
}

bool PathPattern::matches_from(std::string_view path, size_t begin, StepBudget& budget) const {
  const StepBudget before = budget;
  int result = match(compiled_->code.get(), path, begin, 0, budget);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
    budget = before;
    result = match(compiled_->code.get(), path, begin, PCRE2_NO_JIT, budget);
  }
  if (result < 0 && result != PCRE2_ERROR_NOMATCH) fail_for_work();
  return result >= 0;
}

void PathPattern::fail_for_work() const {
  fail("takes too many steps to match the modules of the adapter",
       "do not nest repetitions, or list the modules by name");
}

void PathPattern::fail(std::string_view rule, std::string_view remedy) const {
  throw AdapterError(AdapterErrorCode::config, field_, text_, rule, remedy);
}

bool is_plain_pattern(std::string_view text) { return std::ranges::all_of(text, is_plain_char); }

bool names_path(std::string_view name, std::string_view path) {
  return path == name || (path.size() > name.size() && path.ends_with(name) &&
                          path[path.size() - name.size() - 1] == '.');
}

}  // namespace loratory::reference
