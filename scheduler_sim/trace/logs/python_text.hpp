#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// What Python's repr() prints, without evaluating it. What is no such text is nothing. Results
/// point into the text.
namespace loratory::sim {

/// The end of the value that begins at text[0]: the first comma or closing bracket that is in no
/// string and no bracket, or the end. Nothing when a string or a bracket is not closed.
std::optional<size_t> python_value_end(std::string_view text);

/// The value of `key` in "a=1, b='x'", "'a': 1, 'b': 2" or "a: 1, b: 2".
std::optional<std::string_view> python_field(std::string_view fields, std::string_view key);

/// What is between the outer brackets of "Name(...)", "{...}" or "[...]".
std::optional<std::string_view> python_inside(std::string_view value);

/// A string literal without its quotes; backslash escapes of quotes and backslashes are resolved,
/// all others stay as they are. Nothing for None and other values.
std::optional<std::string> python_string(std::string_view value);

/// Number of elements of "[...]" or "(...)".
std::optional<uint32_t> python_length(std::string_view value);

/// What a reader says of a line in which a value has no end.
[[noreturn]] void bad_python(size_t column);

}  // namespace loratory::sim
