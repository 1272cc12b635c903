#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace loratory {

/// Bad input from outside: a file, a flag, a trace row, an adapter.
///
/// `what()` is the one line a user sees: "<place>: <rule that was broken>; <what to do>".
/// The place is `file:line:column` for text (1-based), a JSON key path or a flag name otherwise.
/// Programmer errors are never InputError; they are LORATORY_ASSERT (base/check.hpp).
class InputError : public std::runtime_error {
 public:
  InputError(std::string_view place, std::string_view rule, std::string_view remedy = {})
      : std::runtime_error(one_line(place, rule, remedy)) {}

 private:
  static std::string one_line(std::string_view place, std::string_view rule,
                              std::string_view remedy) {
    std::string line;
    if (!place.empty()) line.append(place).append(": ");
    line.append(rule);
    if (!remedy.empty()) line.append("; ").append(remedy);
    return line;
  }
};

}  // namespace loratory
