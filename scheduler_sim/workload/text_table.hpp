#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace loratory::sim {

/// One field of a small text table and where it stands, for error messages.
struct TableField {
  std::string_view text;
  std::string_view file;
  uint32_t line = 0;    ///< 1-based
  uint32_t column = 0;  ///< 1-based, of the first byte of the field

  std::string place() const;  ///< "file:line:column"
  /// The field as a number >= 0; throws InputError at place() if it is not one, naming `what`.
  double number(std::string_view what) const;
  /// The field as an integer in [low, high]; throws InputError at place() if it is not one.
  uint32_t integer(std::string_view what, uint32_t low, uint32_t high) const;
};

/// The rows of a text of fields separated by blanks, tabs or commas. '#' starts a comment, blank
/// lines are left out, CR LF ends a line too. The fields point into `text` and `file`.
std::vector<std::vector<TableField>> parse_table(std::string_view text, std::string_view file);

/// A finite number >= 0 written out in full, e.g. in a flag; throws InputError at `place`.
double parse_number(std::string_view text, std::string_view what, std::string_view place);

}  // namespace loratory::sim
