#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace loratory::reference {

/// Work left for the patterns of one configuration: items that PCRE2 tries, about 0.05 us each, and
/// one for each pattern and path. Same pattern, same path: same number of steps on any machine.
struct StepBudget {
  int64_t steps_left = 0;
};

/// A regular expression of adapter_config.json, written for Python's `re`, applied to module paths.
///
/// PCRE2 evaluates it, in UTF-8 and with Unicode classes, as Python does. What Python refuses or
/// reads otherwise is refused: escapes other than \d \w \s \b \A \Z, their capitals and
/// punctuation, back references, conditions, {,n}, POSIX classes, groups other than (...), (?:...),
/// (?P<name>...), (?>...), lookaround and the flags i, m, s ((?i:...), or (?i) at the beginning).
///
/// Errors: E_CONFIG(field) with the pattern as key. Immutable; copies share the compiled form.
class PathPattern {
 public:
  enum class Fit : uint8_t {
    whole_path,  ///< Python's re.fullmatch(text, path); compiled to machine code where that works
    end,         ///< re.match(r"(.*\.)?(text)$", path) [4.7]: `q_proj|k_proj` matches the end of a
                 ///< path, from the beginning of a component on; `^layers.1...` the whole path
  };

  /// `field` is the field of the configuration that it stands in.
  PathPattern(std::string_view text, std::string_view field, Fit fit);

  const std::string& text() const { return text_; }
  /// Throws E_CONFIG(field) when the budget is used up, or 64 MiB of memory.
  bool matches(std::string_view path, StepBudget& budget) const;

 private:
  struct Compiled;

  bool plain_matches(std::string_view path) const;
  bool matches_from(std::string_view path, size_t begin, StepBudget& budget) const;
  [[noreturn]] void fail(std::string_view rule, std::string_view remedy = {}) const;
  [[noreturn]] void fail_for_work() const;

  std::string text_;
  std::string field_;
  Fit fit_;
  std::shared_ptr<const Compiled> compiled_;  ///< none if the text is plain
};

/// Nothing but letters, digits, '_', '-' and '.': no regular expression is needed to match it.
bool is_plain_pattern(std::string_view text);

/// "self_attn.q_proj" names "model.layers.0.self_attn.q_proj": equal, or its end behind a dot.
bool names_path(std::string_view name, std::string_view path);

}  // namespace loratory::reference
