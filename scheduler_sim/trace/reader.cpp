#include "scheduler_sim/trace/reader.hpp"

#include <fmt/format.h>

#include <utility>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/trace/bad_row.hpp"
#include "scheduler_sim/trace/byte_source.hpp"
#include "scheduler_sim/trace/line_reader.hpp"
#include "scheduler_sim/trace/logs/log_rows.hpp"
#include "scheduler_sim/trace/row_parser.hpp"
#include "scheduler_sim/trace/schema.hpp"
#include "scheduler_sim/trace/text_encoding.hpp"
#include "scheduler_sim/trace/trace_builder.hpp"

namespace loratory::sim {
namespace {

constexpr size_t kHeadBytes = 1 << 20;  // a server logs much before its first request

// Says after each chunk how far `raw` was read.
class WatchedSource final : public ByteSource {
 public:
  WatchedSource(ChecksummedSource& raw, const ReadOptions& options, const Trace& trace)
      : raw_(raw), options_(options), trace_(trace), total_bytes_(raw.total_bytes()) {}
  size_t read(char* out, size_t capacity) override {
    const size_t count = raw_.read(out, capacity);
    if (options_.on_progress) {
      options_.on_progress(raw_.bytes_read(), total_bytes_, trace_.requests.size());
    }
    return count;
  }

 private:
  ChecksummedSource& raw_;
  const ReadOptions& options_;
  const Trace& trace_;
  const uint64_t total_bytes_;
};

class TraceReading {
 public:
  TraceReading(std::unique_ptr<ByteSource> raw, std::string_view name, const ReadOptions& options)
      : options_(options),
        raw_(std::move(raw)),
        watched_(raw_, options, trace_),
        unpacked_(decompressed(watched_, std::string(name))),
        text_(utf8_text(*unpacked_, std::string(name))) {
    trace_.source = name;
  }

  Trace run() {
    check_options();
    if (const Schema* log = log_schema()) {
      read_log(*log);
    } else {
      read_lines();
    }
    trim(trace_.requests);
    trim(trace_.block_ids);
    trim(trace_.token_ids);
    trace_.checksum = raw_.checksum();
    return std::move(trace_);
  }

 private:
  void check_options() const {
    if (options_.adapter_from_model && options_.base_models.empty()) {
      throw InputError("--adapter-from", "the name of the base model is missing",
                       "add --base-model NAME");
    }
    if (!options_.adapter_from_model && !options_.base_models.empty()) {
      throw InputError("--base-model", "adapters do not come from model names",
                       "add --adapter-from model");
    }
  }

  const Schema* log_schema() {
    if (options_.format != TraceFormat::detect) {
      const Schema& schema = schema_of(options_.format);
      return schema.syntax == Syntax::log ? &schema : nullptr;
    }
    std::unique_ptr<ByteSource> whole;
    const auto is_clear = [](std::string_view head) {
      return begins_with_columns(head) || detect_log(head) != nullptr;
    };
    const std::string head = peek(*text_, kHeadBytes, whole, is_clear);
    peeked_ = std::exchange(text_, std::move(whole));
    // A row of a trace may hold any text, also that of a log.
    return begins_with_columns(head) ? nullptr : detect_log(head);
  }

  void read_log(const Schema& schema) {
    trace_.format = schema.name;
    TraceBuilder builder(schema, options_, trace_);
    LogRows rows(schema, options_, [this](uint64_t line, const BadRow& bad) { refuse(line, bad); });
    schema.log->read(*text_, rows);
    if (text_->is_truncated()) refuse_torn(1);
    rows.build(builder, trace_);
    check_has_rows(1);
  }

  void read_lines() {
    LineReader lines(*text_);
    Line line;
    if (lines.next(line)) read_from(lines, line);
    if (text_->is_truncated()) refuse_torn(line.number + 1);
    if (lines.is_endless()) {
      fail(line.number + 1, {1, "a line without end", "give a file of one row per line"});
    }
    check_has_rows(line.number + 1);
  }

  void read_from(LineReader& lines, Line& line) {
    const Schema& schema =
        options_.format == TraceFormat::detect ? detected(line) : schema_of(options_.format);
    trace_.format = schema.name;
    TraceBuilder builder(schema, options_, trace_);
    if (schema.syntax == Syntax::jsonl) {
      const auto parser = make_jsonl_parser(schema);
      do read_row(*parser, line, builder);
      while (lines.next(line));
    } else {
      const auto parser = csv_parser(schema, line);
      while (lines.next(line)) read_row(*parser, line, builder);
    }
  }

  const Schema& detected(const Line& first) const {
    if (const size_t at = first.text.find('\0'); at != std::string_view::npos) {
      fail(1, {at + 1, "a NUL byte: the file is binary or damaged",
               "give a trace in text, plain, gzip or zstd"});
    }
    if (first.is_too_long) fail(1, too_long());
    return detect_schema(first.text, trace_.source);
  }

  static BadRow too_long() {
    return {LineReader::kMaxBytes + 1,
            fmt::format("a line of over {} MiB", LineReader::kMaxBytes >> 20),
            "split the file into one row per line"};
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
      if (line.is_too_long) throw too_long();
      Row row;
      parser.parse(line, row, builder);
      builder.add(row);
      if (trace_.requests.size() == next_estimate_) reserve_for_the_rest();
    } catch (const BadRow& bad) {
      refuse(line.number, bad);
      builder.give_up();
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

  void refuse(uint64_t line, const BadRow& bad) {
    if (!options_.skip_bad_rows) fail(line, bad);
    ++trace_.num_rows_skipped;
  }

  void refuse_torn(uint64_t line) {
    refuse(line, {1, "the compressed data stops in the middle", "fetch the file again"});
  }

  void check_has_rows(uint64_t next_line) const {
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
  Trace trace_;
  ChecksummedSource raw_;
  WatchedSource watched_;
  std::unique_ptr<ByteSource> unpacked_, peeked_, text_;
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
