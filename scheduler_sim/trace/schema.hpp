#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "scheduler_sim/trace/logs/log_sink.hpp"
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
  id,  ///< what the source calls this request
  rank,
  priority,
  model,    ///< the name that was asked for
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

enum class Syntax : uint8_t { jsonl, csv, log };

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
  const LogFormat* log = nullptr;  ///< of Syntax::log, which has neither telltale nor columns

  bool has_models() const;
};

/// All formats, in the order in which detection tries them.
std::span<const Schema> schemas();

/// Not for kAuto.
const Schema& schema_of(TraceFormat format);

/// The log that begins so, or nullptr.
const Schema* detect_log(std::string_view head);

/// Whether a text that begins so has all columns of a format of rows in its first line, so that
/// no log needs to be looked for further on.
bool begins_with_columns(std::string_view head);

/// The format of a trace whose first line this is. A trace that looks like none is an InputError.
const Schema& detect_schema(std::string_view first_line, std::string_view file);

}  // namespace loratory::sim
