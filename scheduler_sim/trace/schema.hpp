#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "scheduler_sim/trace/reader.hpp"

namespace loratory::sim {

/// What a column of a trace means to us.
enum class Field : uint8_t {
  kArrival,
  kPromptTokens,
  kOutputTokens,
  kBlockIds,
  kBlockTokens,
  kTokenIds,
  kAdapter,
  kRank,
  kPriority,
  kSession,  ///< a number, or a text that stands for one
  kChat,     ///< id of this request; with kParentChat it gives the session
  kParentChat,
  kCancel,
  kBatchSize,  ///< must be 1
  kIgnored,
  kNumFields
};
inline constexpr size_t kNumFields = static_cast<size_t>(Field::kNumFields);

struct ColumnSpec {
  std::string_view name;
  Field field;
  bool is_required;
};

enum class Syntax : uint8_t { kJsonl, kCsv };

/// How a time is written.
enum class TimeUnit : uint8_t { kMilliseconds, kSeconds, kTimestamp };

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
