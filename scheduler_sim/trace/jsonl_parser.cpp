#include <fmt/format.h>
#include <simdjson.h>

#include <limits>
#include <string_view>

#include "scheduler_sim/trace/bad_escape.hpp"
#include "scheduler_sim/trace/bad_row.hpp"
#include "scheduler_sim/trace/row_fields.hpp"
#include "scheduler_sim/trace/row_parser.hpp"

namespace loratory::sim {
namespace {

namespace ondemand = simdjson::ondemand;

constexpr const char* kObjectRemedy = "one JSON object per line";

std::string_view without_trailing_space(std::string_view text) {
  return text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
}

class JsonlParser final : public RowParser {
 public:
  explicit JsonlParser(const Schema& schema) : schema_(schema) {}

  void parse(const Line& line, Row& row, TraceBuilder& builder) override {
    check_no_nul(line.text);
    line_ = line.text;
    const simdjson::padded_string_view padded(line_.data(), line_.size(),
                                              line_.size() + LineReader::kPaddingBytes);
    check_structure(parser_.iterate(padded).get(document_));
    ondemand::object object;
    check(document_.get_object().get(object));
    next_ = 0;
    seen_ = 0;
    for (simdjson::simdjson_result<ondemand::field> result : object) {
      ondemand::field field;
      check(std::move(result).get(field));
      read_field(field, row, builder);
    }
    // Past the last token the location is an error.
    if (document_.current_location().error() == simdjson::SUCCESS) {
      bad_row(column_of_error(), "something follows the object", kObjectRemedy);
    }
    check_required(row);
  }

 private:
  void read_field(ondemand::field& field, Row& row, TraceBuilder& builder) {
    const char* key_begin = field.key().raw();
    const std::string_view rest = line_.substr(size_t(key_begin - line_.data()));
    const std::string_view key = rest.substr(0, rest.find('"'));
    const ColumnSpec& spec = spec_of(key);
    ondemand::value& value = field.value();
    switch (spec.field) {
      case Field::block_ids:
        return read_ids(spec, value, row, builder.block_ids());
      case Field::token_ids:
        return read_ids(spec, value, row, builder.token_ids());
      case Field::adapter:
        return read_name(spec, value, row, row.adapter, "leave it out for the base model");
      case Field::id:
        return read_name(spec, value, row, row.id, "leave it out");
      case Field::ignored:
        return skip_scalar(value);
      default:
        break;
    }
    const std::string_view text = value.raw_json_token();
    set_field(row, schema_, spec, without_trailing_space(text), column_at(text.data()));
  }

  // Rows mostly repeat the order of the table's columns.
  const ColumnSpec& spec_of(std::string_view key) {
    const auto& columns = schema_.columns;
    for (size_t i = 0; i < columns.size(); ++i) {
      const size_t index = (next_ + i) % columns.size();
      if (columns[index].name != key) continue;
      if ((seen_ >> index & 1) != 0) {
        bad_row(column_at(key.data()) - 1, fmt::format("{} appears twice", excerpt(key)),
                "remove one");
      }
      seen_ |= 1u << index;
      next_ = index + 1;
      return columns[index];
    }
    bad_row(column_at(key.data()) - 1,
            fmt::format("unknown key {} in a {} trace", excerpt(key), schema_.name),
            "remove it, or name another format with --format");
  }

  template <typename Id>
  void read_ids(const ColumnSpec& spec, ondemand::value& value, Row& row, std::vector<Id>& ids) {
    row.columns[size_t(spec.field)] = column_of(value);
    ondemand::array array;
    check(value.get_array().get(array));
    for (auto element : array) {
      uint64_t id = 0;
      const simdjson::error_code error = element.get_uint64().get(id);
      if (error == simdjson::INCORRECT_TYPE || error == simdjson::NUMBER_ERROR) {
        bad_row(column_of_error(), fmt::format("{} holds no whole number >= 0 here", spec.name),
                "write ids in decimal digits");
      }
      check(error);
      if (id > uint64_t(std::numeric_limits<Id>::max())) {
        bad_row(row.column(spec.field), fmt::format("{} holds {}", spec.name, id),
                fmt::format("ids go up to {}", std::numeric_limits<Id>::max()));
      }
      ids.push_back(static_cast<Id>(id));
    }
  }

  void read_name(const ColumnSpec& spec, ondemand::value& value, Row& row, std::string_view& name,
                 std::string_view remedy) {
    const uint32_t column = column_of(value);
    row.columns[size_t(spec.field)] = column;
    check(value.get_string().get(name));
    if (name.empty()) {
      bad_row(column, fmt::format("{} is empty", spec.name), std::string(remedy));
    }
  }

  void skip_scalar(ondemand::value& value) {
    if (value.raw_json_token().starts_with('"')) {
      check(value.get_string().error());
    } else {
      check(value.get_double().error());
    }
  }

  void check_required(const Row& row) const {
    for (const ColumnSpec& spec : schema_.columns) {
      if (!spec.is_required || row.has(spec.field)) continue;
      bad_row(1, fmt::format("{} is missing", spec.name),
              fmt::format("a row of a {} trace has it", schema_.name));
    }
  }

  // What the first pass over the line finds: it does not say where.
  void check_structure(simdjson::error_code error) const {
    if (error == simdjson::SUCCESS) return;
    if (error == simdjson::UTF8_ERROR) check_utf8(line_);
    fail(error, uint32_t(line_.size()) + 1);
  }

  void check(simdjson::error_code error) {
    if (error == simdjson::SUCCESS) return;
    const auto escape = error == simdjson::STRING_ERROR ? bad_escape(line_) : std::nullopt;
    if (escape) throw BadRow(*escape);
    // That a bracket is not closed is noticed at the first one; what is missing is at the end.
    const bool is_cut = error == simdjson::INCOMPLETE_ARRAY_OR_OBJECT;
    fail(error, is_cut ? uint32_t(line_.size()) + 1 : column_of_error());
  }

  [[noreturn]] static void fail(simdjson::error_code error, uint32_t column) {
    bad_row(column, fmt::format("invalid JSON ({})", reason(error)), kObjectRemedy);
  }

  static std::string_view reason(simdjson::error_code error) {
    switch (error) {
      case simdjson::INCORRECT_TYPE:
        return "a value of another type";
      case simdjson::NUMBER_ERROR:
        return "not a number";
      case simdjson::NUMBER_OUT_OF_RANGE:
        return "a number out of range";
      case simdjson::UNCLOSED_STRING:
        return "an unterminated string";
      case simdjson::UNESCAPED_CHARS:
        return "a control character in a string";
      case simdjson::INCOMPLETE_ARRAY_OR_OBJECT:
        return "the line is cut off";
      case simdjson::EMPTY:
        return "an empty line";
      default:
        return "a comma, colon, quote or bracket is missing";
    }
  }

  uint32_t column_of(ondemand::value& value) const {
    return column_at(value.raw_json_token().data());
  }
  uint32_t column_at(const char* place) const { return uint32_t(place - line_.data()) + 1; }

  // Where simdjson stopped; the end of the line when it does not know.
  uint32_t column_of_error() {
    const char* place = nullptr;
    const char* end = line_.data() + line_.size();
    if (document_.current_location().get(place) != simdjson::SUCCESS || place < line_.data() ||
        place > end) {
      place = end;
    }
    return column_at(place);
  }

  const Schema& schema_;
  ondemand::parser parser_;
  ondemand::document document_;
  std::string_view line_;
  size_t next_ = 0;    // column expected next
  uint32_t seen_ = 0;  // bit i: column i was there
};

}  // namespace

std::unique_ptr<RowParser> make_jsonl_parser(const Schema& schema) {
  return std::make_unique<JsonlParser>(schema);
}

}  // namespace loratory::sim
