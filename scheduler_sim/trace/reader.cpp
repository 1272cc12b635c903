#include "scheduler_sim/trace/reader.hpp"

#include <fmt/format.h>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/trace/bad_row.hpp"
#include "scheduler_sim/trace/byte_source.hpp"
#include "scheduler_sim/trace/line_reader.hpp"
#include "scheduler_sim/trace/row_parser.hpp"
#include "scheduler_sim/trace/schema.hpp"
#include "scheduler_sim/trace/trace_builder.hpp"

namespace loratory::sim {
namespace {

class TraceReading {
 public:
  TraceReading(std::unique_ptr<ByteSource> raw, std::string_view name, const ReadOptions& options)
      : options_(options),
        raw_(std::move(raw)),
        plain_(decompressed(raw_, std::string(name))),
        lines_(*plain_) {
    trace_.source = name;
  }

  Trace run() {
    Line line;
    if (lines_.next(line)) read_from(line);
    check_end(line.number + 1);
    trim(trace_.requests);
    trim(trace_.block_ids);
    trim(trace_.token_ids);
    trace_.checksum = raw_.checksum();
    return std::move(trace_);
  }

 private:
  void read_from(Line& line) {
    const Schema& schema = options_.format == TraceFormat::detect
                               ? detect_schema(line.text, trace_.source)
                               : schema_of(options_.format);
    trace_.format = schema.name;
    TraceBuilder builder(schema, options_.block_tokens, trace_);
    if (schema.syntax == Syntax::jsonl) {
      const auto parser = make_jsonl_parser(schema);
      do read_row(*parser, line, builder);
      while (lines_.next(line));
    } else {
      const auto parser = csv_parser(schema, line);
      while (lines_.next(line)) read_row(*parser, line, builder);
    }
  }

  // A bad header is an error even under skip_bad_rows: no row can be read without it.
  std::unique_ptr<RowParser> csv_parser(const Schema& schema, const Line& header) const {
    try {
      return make_csv_parser(schema, header);
    } catch (const BadRow& bad) {
      fail(header.number, bad);
    }
  }

  void read_row(RowParser& parser, const Line& line, TraceBuilder& builder) {
    try {
      if (line.is_too_long) {
        bad_row(LineReader::kMaxBytes + 1,
                fmt::format("a line of over {} MiB", LineReader::kMaxBytes >> 20),
                "split the file into one row per line");
      }
      Row row;
      parser.parse(line, row, builder);
      builder.add(row);
      if (trace_.requests.size() == next_estimate_) reserve_for_the_rest();
    } catch (const BadRow& bad) {
      if (!options_.skip_bad_rows) fail(line.number, bad);
      builder.give_up();
      ++trace_.num_rows_skipped;
    }
  }

  // What was read so far says how much a file of known size will need. Growing by doubling would
  // touch twice the memory, which costs more than parsing.
  void reserve_for_the_rest() {
    constexpr size_t kEstimatesGrowBy = 16;
    constexpr double kMargin = 1.05;  // also covers what was read ahead of the last row
    next_estimate_ *= kEstimatesGrowBy;
    const auto total = double(raw_.total_bytes());
    const auto read = double(raw_.bytes_read());
    if (total <= read) return;
    const double factor = kMargin * total / read;
    const auto reserve = [factor](auto& values) {
      values.reserve(size_t(factor * double(values.size())));
    };
    reserve(trace_.requests);
    reserve(trace_.block_ids);
    reserve(trace_.token_ids);
  }

  // Gives memory back where more than a fifth of it is empty.
  template <typename T>
  static void trim(std::vector<T>& values) {
    if (values.capacity() - values.size() > values.capacity() / 5) values.shrink_to_fit();
  }

  void check_end(uint64_t next_line) {
    if (lines_.is_truncated()) {
      const BadRow torn{1, "the compressed data stops in the middle", "fetch the file again"};
      if (!options_.skip_bad_rows) fail(next_line, torn);
      ++trace_.num_rows_skipped;
    }
    if (!trace_.requests.empty()) return;
    throw InputError(
        fmt::format("{}:{}:1", trace_.source, next_line),
        trace_.num_rows_skipped > 0 ? "every row of the trace is bad" : "the trace has no rows",
        "give a trace with at least one request");
  }

  [[noreturn]] void fail(uint64_t line_number, const BadRow& bad) const {
    throw InputError(fmt::format("{}:{}:{}", trace_.source, line_number, bad.column), bad.rule,
                     bad.remedy);
  }

  const ReadOptions& options_;
  ChecksummedSource raw_;
  std::unique_ptr<ByteSource> plain_;
  LineReader lines_;
  Trace trace_;
  size_t next_estimate_ = 1 << 16;
};

}  // namespace

Trace read_trace(const std::string& path, const ReadOptions& options) {
  return TraceReading(open_file(path), path, options).run();
}

Trace read_trace_from(std::string_view bytes, std::string_view name, const ReadOptions& options) {
  return TraceReading(open_bytes(bytes), name, options).run();
}

}  // namespace loratory::sim
