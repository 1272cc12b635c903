#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "scheduler_sim/trace/reader.hpp"

namespace loratory::sim {

/// What a column of a trace means to us.
enum class Field : uint8_t {
  arrival,
  prompt_tokens,
  output_tokens,
  block_ids,
  block_tokens,
  token_ids,
  adapter,
  rank,
  priority,
  session,  ///< a number, or a text that stands for one
  chat,     ///< id of this request; with parent_chat it gives the session
  parent_chat,
  cancel,
  batch_size,  ///< must be 1
  ignored,
  num_fields
};
inline constexpr size_t kNumFields = size_t(Field::num_fields);

struct ColumnSpec {
  std::string_view name;
  Field field;
  bool is_required;
};

enum class Syntax : uint8_t { jsonl, csv };

/// How a time is written.
enum class TimeUnit : uint8_t { milliseconds, seconds, timestamp };

/// One trace format: the table that its reader runs on.
struct Schema {
  TraceFormat format;
  std::string_view name;
  Syntax syntax;
  TimeUnit time_unit;
  bool is_from_first_row;     ///< times count from an unrelated origin: the first row is 0
  uint32_t block_tokens;      ///< tokens of one entry of kBlockIds; 0 = the rows say it
  std::string_view telltale;  ///< column that no other format of this syntax has
  std::span<const ColumnSpec> columns;
};

/// All formats, in the order in which detection tries them.
std::span<const Schema> schemas();

/// Not for kAuto.
const Schema& schema_of(TraceFormat format);

/// The format of a trace whose first line this is. A trace that looks like none is an InputError.
const Schema& detect_schema(std::string_view first_line, std::string_view file);

}  // namespace loratory::sim
