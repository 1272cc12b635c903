#pragma once

#include <memory>

#include "scheduler_sim/trace/line_reader.hpp"
#include "scheduler_sim/trace/schema.hpp"
#include "scheduler_sim/trace/trace_builder.hpp"

namespace loratory::sim {

/// Turns lines of one syntax into rows.
class RowParser {
 public:
  virtual ~RowParser() = default;
  /// Fills `row`, which is fresh; block and token ids go into the builder. Throws BadRow. What the
  /// row points to is valid until the next call.
  virtual void parse(const Line& line, Row& row, TraceBuilder& builder) = 0;
};

std::unique_ptr<RowParser> make_jsonl_parser(const Schema& schema);

/// `header` is the first line of the file. Throws BadRow: a column that is unknown, missing, twice.
std::unique_ptr<RowParser> make_csv_parser(const Schema& schema, const Line& header);

}  // namespace loratory::sim
