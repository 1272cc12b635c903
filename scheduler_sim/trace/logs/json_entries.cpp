#include "scheduler_sim/trace/logs/json_entries.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "scheduler_sim/trace/bad_escape.hpp"
#include "scheduler_sim/trace/line_reader.hpp"
#include "scheduler_sim/trace/numbers.hpp"
#include "scheduler_sim/trace/row_fields.hpp"

namespace loratory::sim {
namespace {

using Visit = std::function<void(const JsonObject&, uint64_t)>;

// Throws away everything but the place of the first error, which simdjson does not tell.
class ErrorFinder : public nlohmann::json_sax<nlohmann::json> {
 public:
  size_t at = 0;  // 1-based byte
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    at = position;
    return false;
  }
};

void refuse_json(std::string_view text, uint64_t first_line, LogSink& sink) {
  ErrorFinder finder;
  nlohmann::json::sax_parse(text.begin(), text.end(), &finder);
  BadRow bad{finder.at, "invalid JSON", "give JSON lines, or one document"};
  const auto escape = bad_escape(text);
  if (escape && escape->column <= finder.at) bad = *escape;
  const std::string_view before =
      text.substr(0, std::clamp<size_t>(bad.column, 1, text.size() + 1) - 1);
  const auto line = first_line + uint64_t(std::ranges::count(before, '\n'));
  bad.column = before.size() - (before.rfind('\n') + 1) + 1;
  sink.refuse(line, bad);
}

void visit_guarded(const JsonElement& element, uint64_t line, const std::string& place,
                   LogSink& sink, const Visit& visit) {
  try {
    JsonObject object;
    if (element.get(object) != simdjson::SUCCESS) {
      bad_row(1, "an entry that is no JSON object", "give an object for each request");
    }
    visit(object, line);
  } catch (BadRow& bad) {
    bad.rule = place + bad.rule;
    sink.refuse(line, bad);
  }
}

// An object, or each of the elements of an array.
void visit_value(const JsonElement& value, uint64_t line, LogSink& sink, const Visit& visit) {
  simdjson::dom::array array;
  if (value.get(array) != simdjson::SUCCESS) return visit_guarded(value, line, "", sink, visit);
  size_t index = 0;
  for (const JsonElement element : array) {
    visit_guarded(element, line, fmt::format("[{}]: ", index++), sink, visit);
  }
}

bool parses(simdjson::dom::parser& parser, std::string_view text, JsonElement& value) {
  return parser.parse(text.data(), text.size()).get(value) == simdjson::SUCCESS;
}

// The rest of the text behind `document`.
bool read_rest(LineReader& lines, std::string& document) {
  Line line;
  while (lines.next(line)) {
    if (line.is_too_long || document.size() + line.text.size() >= kMaxJsonBytes) return false;
    document += '\n';
    document += line.text;
  }
  return !lines.is_truncated();
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r") == std::string_view::npos;
}

BadRow too_large() {
  return {1, fmt::format("over {} MiB of JSON in one piece", kMaxJsonBytes >> 20),
          "give JSON lines"};
}

}  // namespace

void visit_json_line(simdjson::dom::parser& parser, std::string_view line, uint64_t number,
                     LogSink& sink, const Visit& visit) {
  JsonElement value;
  if (parses(parser, line, value)) return visit_value(value, number, sink, visit);
  refuse_json(line, number, sink);
}

void for_each_json_object(ByteSource& text, LogSink& sink, const Visit& visit) {
  LineReader lines(text, kMaxJsonBytes);
  simdjson::dom::parser parser;
  Line line;
  do {
    if (!lines.next(line)) return;
  } while (is_blank(line.text) && !line.is_too_long);
  JsonElement value;
  const bool is_json_lines = !line.is_too_long && parses(parser, line.text, value);
  if (is_json_lines) {
    visit_value(value, line.number, sink, visit);
    while (lines.next(line)) {
      if (line.is_too_long) {
        sink.refuse(line.number, too_large());
      } else if (!is_blank(line.text)) {
        visit_json_line(parser, line.text, line.number, sink, visit);
      }
    }
    return;
  }
  const uint64_t first_line = line.number;
  std::string document(line.text);
  if (line.is_too_long || !read_rest(lines, document)) {
    if (!lines.is_truncated()) sink.refuse(first_line, too_large());
    return;
  }
  visit_json_line(parser, document, first_line, sink, visit);
}

std::optional<JsonElement> member(const JsonObject& object, std::string_view key) {
  JsonElement value;
  if (object.at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return value;
}

std::string text_or_empty(const std::optional<JsonElement>& value) {
  std::string_view text;
  if (!value || value->get(text) != simdjson::SUCCESS) return "";
  return std::string(text);
}

std::optional<int64_t> whole_number(const std::optional<JsonElement>& value, std::string_view key,
                                    int64_t high) {
  if (!value) return std::nullopt;
  int64_t number = -1;
  double real = 0;
  std::string_view text;
  if (value->get(text) == simdjson::SUCCESS) {
    if (parse_integer(text, number) != Parse::good) number = -1;
  } else if (value->get(number) != simdjson::SUCCESS) {
    const bool is_whole = value->get(real) == simdjson::SUCCESS && real == std::floor(real) &&
                          real >= 0 && real < 9e15;  // below 2^53 every double is exact
    number = is_whole ? int64_t(real) : -1;
  }
  if (number < 0 || number > high) {
    bad_row(1, fmt::format("{} is no whole number in 0..{}", key, high), "check the log");
  }
  return number;
}

std::optional<uint32_t> token_count(const std::optional<JsonElement>& value, std::string_view key) {
  const std::optional<int64_t> number = whole_number(value, key, kMaxCount);
  return number ? std::optional(uint32_t(*number)) : std::nullopt;
}

}  // namespace loratory::sim
