#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

// For .cpp files: it brings in the JSON library.

namespace loratory {

/// `text` as a JSON object. Errors: InputError naming `file`: not JSON, more than `largest` bytes,
/// nested more than 32 deep, a number that no double holds.
nlohmann::json parse_json_object(std::string_view text, const std::string& file,
                                 size_t largest = size_t{4} << 20);

/// The fields of one JSON object; every error names the file and the key. A null counts as absent.
/// A subclass may throw errors of a kind of its own.
class JsonFields {
 public:
  /// `prefix` stands before the key in errors. Lifetime: `object`'s.
  JsonFields(const nlohmann::json& object, std::string file, std::string prefix = "")
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}
  virtual ~JsonFields() = default;

  bool has(const char* key) const { return find(key) != nullptr; }
  bool is_null(const char* key) const;
  const nlohmann::json* find(const char* key) const;

  /// In [1, largest]; an error if it is missing.
  int64_t size(const char* key, int64_t largest) const;
  int64_t size_or(const char* key, int64_t fallback, int64_t largest) const;
  /// Greater than `above`, at most 1e30 (a float holds it).
  double number_or(const char* key, double fallback, double above) const;
  bool flag_or(const char* key, bool fallback) const;
  std::string text_or(const char* key, const std::string& fallback) const;
  /// An integer in [low, high], which `value` of field `key` must be.
  int64_t integer(const char* key, const nlohmann::json& value, int64_t low, int64_t high) const;

  const std::string& file() const { return file_; }
  [[noreturn]] void fail(std::string_view key, std::string_view rule,
                         std::string_view remedy = {}) const;

 private:
  /// Throws; an InputError that names file and key.
  virtual void throw_error(std::string_view key, std::string_view rule,
                           std::string_view remedy) const;

  const nlohmann::json& object_;
  std::string file_, prefix_;
};

}  // namespace loratory
