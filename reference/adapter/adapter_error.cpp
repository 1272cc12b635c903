#include "reference/adapter/adapter_error.hpp"

#include <algorithm>
#include <array>

namespace loratory::reference {
namespace {

constexpr size_t kLongestKey = 200;

constexpr std::array<std::string_view, 11> kWords{
    "E_IO",   "E_CONFIG", "E_KEY",         "E_PAIR",      "E_SHAPE", "E_DTYPE",
    "E_RANK", "E_TARGET", "E_UNSUPPORTED", "E_NONFINITE", "E_EMPTY"};

std::string place_of(AdapterErrorCode code, std::string_view detail, std::string_view key) {
  std::string place(code_word(code));
  if (!detail.empty()) place.append("(").append(detail).append(")");
  if (!key.empty()) place.append(": ").append(printable_key(key));
  return place;
}

}  // namespace

std::string_view code_word(AdapterErrorCode code) { return kWords[size_t(code)]; }

std::string printable_key(std::string_view key) {
  std::string text(key.substr(0, kLongestKey));
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c > '~'; }, '?');
  if (key.size() > kLongestKey) text.append("...");
  return text;
}

AdapterError::AdapterError(AdapterErrorCode code, std::string_view key, std::string_view rule,
                           std::string_view remedy)
    : AdapterError(code, "", key, rule, remedy) {}

AdapterError::AdapterError(AdapterErrorCode code, std::string_view detail, std::string_view key,
                           std::string_view rule, std::string_view remedy)
    : InputError(place_of(code, detail, key), rule, remedy),
      code_(code),
      detail_(detail),
      key_(printable_key(key)) {}

}  // namespace loratory::reference
