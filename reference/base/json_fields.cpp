#include "reference/base/json_fields.hpp"

#include <fmt/format.h>

#include <cstdlib>

#include "reference/base/input_error.hpp"

namespace loratory {

using nlohmann::json;

namespace {

constexpr int kDeepest = 32;

}  // namespace

json parse_json_object(std::string_view text, const std::string& file, size_t largest) {
  if (text.size() > largest) throw InputError(file, fmt::format("exceeds {} bytes", largest));
  const auto not_too_deep = [&](int depth, json::parse_event_t, json&) {
    if (depth > kDeepest) throw InputError(file, fmt::format("nests deeper than {}", kDeepest));
    return true;
  };
  try {
    json value = json::parse(text, not_too_deep);
    if (!value.is_object()) throw InputError(file, "must be a JSON object");
    return value;
  } catch (const json::parse_error& error) {
    throw InputError(file, fmt::format("is not JSON (byte {})", error.byte));
  } catch (const json::out_of_range&) {
    throw InputError(file, "has a number outside the range of a double");
  }
}

const json* JsonFields::find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool JsonFields::is_null(const char* key) const {
  const auto it = object_.find(key);
  return it != object_.end() && it->is_null();
}

int64_t JsonFields::integer(const char* key, const json& value, int64_t low, int64_t high) const {
  // As double first: an integer beyond 64 bits has no int64_t to ask for.
  const bool in_range = value.is_number_integer() && value.get<double>() >= double(low) &&
                        value.get<double>() <= double(high);
  const int64_t exact = in_range ? value.get<int64_t>() : 0;
  if (!in_range || exact < low || exact > high) {
    fail(key, fmt::format("must be an integer from {} to {}", low, high));
  }
  return exact;
}

int64_t JsonFields::size(const char* key, int64_t largest) const {
  const json* const value = find(key);
  if (value == nullptr) fail(key, "is missing");
  return integer(key, *value, 1, largest);
}

int64_t JsonFields::size_or(const char* key, int64_t fallback, int64_t largest) const {
  return has(key) ? size(key, largest) : fallback;
}

double JsonFields::number_or(const char* key, double fallback, double above) const {
  const json* const value = find(key);
  if (value == nullptr) return fallback;
  const bool good =
      value->is_number() && value->get<double>() <= 1e30 && value->get<double>() > above;
  if (!good) fail(key, fmt::format("must be a number above {}, at most 1e30", above));
  return value->get<double>();
}

bool JsonFields::flag_or(const char* key, bool fallback) const {
  const json* const value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) fail(key, "must be true or false");
  return value->get<bool>();
}

std::string JsonFields::text_or(const char* key, const std::string& fallback) const {
  const json* const value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) fail(key, "must be a string");
  return value->get<std::string>();
}

void JsonFields::fail(std::string_view key, std::string_view rule, std::string_view remedy) const {
  throw_error(key, rule, remedy);
  std::abort();  // a throw_error that returns
}

void JsonFields::throw_error(std::string_view key, std::string_view rule,
                             std::string_view remedy) const {
  throw InputError(fmt::format("{}: {}{}", file_, prefix_, key), rule, remedy);
}

}  // namespace loratory
