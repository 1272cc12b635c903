#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace loratory::sim {

/// A row that breaks a rule. The reader that knows file and line turns it into an InputError, or
/// counts it under skip_bad_rows.
struct BadRow {
  size_t column;  ///< 1-based byte in the line
  std::string rule;
  std::string remedy;
};

[[noreturn]] inline void bad_row(size_t column, std::string rule, std::string remedy = {}) {
  throw BadRow{column, std::move(rule), std::move(remedy)};
}

}  // namespace loratory::sim
