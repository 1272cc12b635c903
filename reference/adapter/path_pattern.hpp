#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace loratory::reference {

/// A regular expression of adapter_config.json, written for Python's `re`, applied to module paths.
///
/// Evaluated as ECMAScript without backtracking, so that no pattern takes exponential time.
/// Accepted is what means the same in both languages: escapes other than \d \w \s \b, their
/// capitals and punctuation, groups such as (?P<name>...), empty classes, back references and
/// repetitions of more than 1000 states are refused, and so are patterns above 1024 characters.
///
/// Errors: E_CONFIG(field) with the pattern as key. Immutable; copies share the compiled form.
class PathPattern {
 public:
  /// `field` is the field of the configuration that it stands in.
  PathPattern(std::string_view text, std::string_view field);

  const std::string& text() const { return text_; }
  /// Nothing but letters, digits, '_', '-' and '.': no regular expression is needed to match it.
  bool is_plain() const;

  /// Python's re.fullmatch(text, path).
  bool matches(std::string_view path) const;
  /// Python's re.match(r"(.*\.)?(text)$", path) [4.7]: `q_proj|k_proj` matches the end of a path,
  /// from the beginning of a component on; `^layers.1...` the whole path.
  bool matches_end(std::string_view path) const;

 private:
  struct Compiled;
  std::string text_;
  std::shared_ptr<const Compiled> compiled_;  ///< none if the text is plain
};

/// "self_attn.q_proj" names "model.layers.0.self_attn.q_proj": equal, or its end behind a dot.
bool names_path(std::string_view name, std::string_view path);

}  // namespace loratory::reference
