#pragma once

#include <cstdint>
#include <string_view>

#include "scheduler_sim/trace/line_reader.hpp"
#include "scheduler_sim/trace/numbers.hpp"
#include "scheduler_sim/trace/schema.hpp"
#include "scheduler_sim/trace/trace_builder.hpp"

namespace loratory::sim {

/// Largest number of tokens or block size in a row.
inline constexpr int64_t kMaxCount = INT32_MAX;

/// Puts the scalar `text`, found in column `column`, into the row. Where `has_decimal_comma`, a
/// time may have a comma for its point. Throws BadRow.
void set_field(Row& row, const Schema& schema, const ColumnSpec& spec, std::string_view text,
               uint32_t column, bool has_decimal_comma = false);

inline constexpr const char* kTimestampRemedy =
    "write YYYY-MM-DD HH:MM:SS.fff, with a zone or without";

/// Throws the BadRow for `text` in column `column`, of which parse_timestamp says `parse`.
[[noreturn]] void refuse_timestamp(std::string_view name, std::string_view text, uint32_t column,
                                   Parse parse);

/// NUL bytes and text that is not UTF-8 are BadRows.
void check_no_nul(std::string_view line);
void check_utf8(std::string_view line);
/// A last row without a newline may be cut off, which makes it a BadRow.
void check_is_whole(const Line& line);

/// First characters of `text`, for a message, with what is not printable ASCII as '?'.
std::string excerpt(std::string_view text);

}  // namespace loratory::sim
