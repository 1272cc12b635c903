#include "scheduler_sim/trace/row_fields.hpp"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>

#include "reference/base/check.hpp"
#include "scheduler_sim/trace/bad_row.hpp"

namespace loratory::sim {
namespace {

// Where a scalar stands, for messages.
struct FieldCell {
  const ColumnSpec& spec;
  std::string_view text;
  uint32_t column;
  bool has_decimal_comma;

  [[noreturn]] void fail(std::string_view rule, std::string remedy) const {
    bad_row(column, fmt::format("{} is {}: {}", spec.name, rule, excerpt(text)), std::move(remedy));
  }
};

int64_t integer(const FieldCell& cell, int64_t low, int64_t high) {
  int64_t value = 0;
  const Parse parse = parse_integer(cell.text, value);
  if (parse == Parse::not_a_number) cell.fail("not a whole number", "write decimal digits");
  if (parse == Parse::out_of_range || value < low || value > high) {
    cell.fail("out of range", fmt::format("it must be in {}..{}", low, high));
  }
  return value;
}

uint32_t count(const FieldCell& cell, int64_t low) {
  return uint32_t(integer(cell, low, kMaxCount));
}

Parse parse_time(std::string_view text, TimeUnit unit, int64_t& value) {
  if (unit == TimeUnit::timestamp) return parse_timestamp(text, value);
  return parse_scaled(text, unit == TimeUnit::seconds ? 9 : 6, value);
}

std::string with_point(std::string_view text) {
  std::string number(text);
  std::ranges::replace(number, ',', '.');
  return number;
}

std::string number_remedy(std::string_view text) {
  const std::string number = without_grouping(text);
  return number.empty() ? "write a decimal number"
                        : fmt::format("write it without marks for thousands: {}", number);
}

int64_t time_ns(const FieldCell& cell, TimeUnit unit) {
  const bool has_comma = cell.has_decimal_comma && cell.text.find(',') != std::string_view::npos;
  int64_t value = 0;
  const Parse parse = has_comma ? parse_time(with_point(cell.text), unit, value)
                                : parse_time(cell.text, unit, value);
  if (unit == TimeUnit::timestamp && parse != Parse::good) {
    refuse_timestamp(cell.spec.name, cell.text, cell.column, parse);
  }
  if (parse == Parse::not_a_number) cell.fail("not a time", number_remedy(cell.text));
  if (value < 0) cell.fail("negative", "times count from the start of the trace");
  // Timestamps count from 1970, and only their differences stay.
  if (parse == Parse::out_of_range || (unit != TimeUnit::timestamp && value > kMaxTimeNs)) {
    cell.fail("out of range", "check the unit of the times");
  }
  return value;
}

void set_session(Row& row, const Schema& schema, const FieldCell& cell) {
  if (schema.syntax == Syntax::csv) {
    row.session_name = cell.text;
  } else {
    row.session = uint32_t(integer(cell, 0, UINT32_MAX));
  }
}

// Bytes of the UTF-8 character that starts with `lead`; 1 for what starts none.
size_t character_bytes(unsigned char lead) {
  return lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

}  // namespace

void set_field(Row& row, const Schema& schema, const ColumnSpec& spec, std::string_view text,
               uint32_t column, bool has_decimal_comma) {
  const FieldCell cell{spec, text, column, has_decimal_comma};
  row.columns[size_t(spec.field)] = column;
  switch (spec.field) {
    case Field::arrival:
      row.arrival_ns = time_ns(cell, schema.time_unit);
      return;
    case Field::cancel:
      row.cancel_ns = time_ns(cell, schema.time_unit);
      return;
    case Field::prompt_tokens:
      row.prompt_tokens = count(cell, 0);
      return;
    case Field::output_tokens:
      row.output_tokens = count(cell, 0);
      return;
    case Field::block_tokens:
      row.block_tokens = count(cell, 1);
      return;
    case Field::rank:
      row.rank = uint32_t(integer(cell, 1, kMaxRank));
      return;
    case Field::priority:
      row.priority = int32_t(integer(cell, INT32_MIN, INT32_MAX));
      return;
    case Field::session:
      set_session(row, schema, cell);
      return;
    case Field::chat:
      row.chat = integer(cell, 0, INT64_MAX);
      return;
    case Field::parent_chat:
      row.parent_chat = integer(cell, -1, INT64_MAX);
      return;
    case Field::batch_size:
      integer(cell, 1, 1);
      return;
    case Field::model:
      row.model = text;
      return;
    case Field::ignored:
      return;
    case Field::adapter:
    case Field::id:
    case Field::block_ids:
    case Field::token_ids:
    case Field::num_fields:
      break;
  }
  LORATORY_ASSERT(false, "a scalar is neither a string nor a list");
}

void refuse_timestamp(std::string_view name, std::string_view text, uint32_t column, Parse parse) {
  const bool is_time = parse == Parse::out_of_range;
  bad_row(column,
          fmt::format("{} is {}: {}", name, is_time ? "out of range" : "not a time", excerpt(text)),
          is_time ? timestamp_limit(text) : kTimestampRemedy);
}

void check_no_nul(std::string_view line) {
  const size_t at = line.find('\0');
  if (at != std::string_view::npos) bad_row(at + 1, "a NUL byte", "the file is damaged");
}

void check_utf8(std::string_view line) {
  if (simdjson::validate_utf8(line.data(), line.size())) return;
  size_t at = 0;
  while (at < line.size()) {
    const size_t bytes =
        std::min(character_bytes(static_cast<unsigned char>(line[at])), line.size() - at);
    if (!simdjson::validate_utf8(line.data() + at, bytes)) break;
    at += bytes;
  }
  bad_row(at + 1, "text that is not UTF-8", "convert the file to UTF-8");
}

void check_is_whole(const Line& line) {
  if (line.is_terminated) return;
  bad_row(line.text.size() + 1, "the last row has no newline and may be cut off",
          "append a newline if the file is whole");
}

std::string excerpt(std::string_view text) {
  constexpr size_t kMaxChars = 32;
  std::string shown = "'" + std::string(text.substr(0, kMaxChars));
  for (char& c : shown) {
    if (c < ' ' || c > '~') c = '?';
  }
  return shown + (text.size() > kMaxChars ? "...'" : "'");
}

}  // namespace loratory::sim
