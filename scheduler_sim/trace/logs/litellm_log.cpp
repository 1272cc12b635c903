// LiteLLM's table of spend logs, exported as CSV (psql \copy ... CSV HEADER), as JSON lines or as
// one JSON array (/spend/logs): BerriAI/litellm, schema.prisma, model LiteLLM_SpendLogs. Columns
// may come in any order, and those that are not named here are ignored.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "scheduler_sim/trace/csv_cells.hpp"
#include "scheduler_sim/trace/line_reader.hpp"
#include "scheduler_sim/trace/logs/json_entries.hpp"
#include "scheduler_sim/trace/numbers.hpp"
#include "scheduler_sim/trace/row_fields.hpp"

namespace loratory::sim {
namespace {

enum LogColumn : size_t {
  kId,
  kStart,
  kModelName,
  kPrompt,
  kOutput,
  kCallType,
  kStatus,
  kCacheHit,
  kSession,
  kNumLogColumns
};
constexpr std::array<std::string_view, kNumLogColumns> kNames = {
    "request_id", "startTime", "model",     "prompt_tokens", "completion_tokens",
    "call_type",  "status",    "cache_hit", "session_id"};
constexpr std::array kRequired = {kId, kStart, kModelName, kPrompt, kOutput};

// The text of each column, "" where there is none, and where it stands.
struct Entry {
  std::array<std::string, kNumLogColumns> texts;
  std::array<uint32_t, kNumLogColumns> columns{};
};

// pandas writes times as numbers unless told otherwise, of milliseconds, seconds or nanoseconds.
int64_t start_ns(const Entry& entry) {
  const std::string& text = entry.texts[kStart];
  int64_t unix_ns = 0;
  double number = 0;
  const Parse parse = parse_timestamp(text, unix_ns);
  if (parse == Parse::good) return unix_ns;
  if (parse_double(text, number) == Parse::good) {
    bad_row(entry.columns[kStart],
            fmt::format("startTime is a number, not a time: {}", excerpt(text)),
            fmt::format("{} (pandas: date_format='iso')", kTimestampRemedy));
  }
  refuse_timestamp("startTime", text, entry.columns[kStart], parse);
}

uint32_t tokens(const Entry& entry, LogColumn column) {
  int64_t count = 0;
  const std::string& text = entry.texts[column];
  if (parse_integer(text, count) != Parse::good || count < 0 || count > kMaxCount) {
    bad_row(
        entry.columns[column],
        fmt::format("{} is no whole number in 0..{}: {}", kNames[column], kMaxCount, excerpt(text)),
        "write decimal digits");
  }
  return uint32_t(count);
}

// Only what an engine generated: no embeddings, images or speech, and nothing out of a cache.
bool generates_text(const Entry& entry, LogSink& sink) {
  const std::string& type = entry.texts[kCallType];
  const auto has = [&](std::string_view word) { return type.find(word) != std::string::npos; };
  if (!type.empty() && !has("completion") && !has("responses") && !has("messages") &&
      !has("generate_content")) {
    sink.note("rows of spend logs that generate no text (call_type) are left out");
    return false;
  }
  const std::string& hit = entry.texts[kCacheHit];
  if (hit == "True" || hit == "true" || hit == "t") {
    sink.note("rows that LiteLLM's own cache answered (cache_hit) are left out");
    return false;
  }
  return true;
}

void read_entry(const Entry& entry, uint64_t line, LogSink& sink) {
  if (!generates_text(entry, sink)) return;
  if (entry.texts[kStatus] == "failure") {
    bad_row(entry.columns[kStatus], "a failed request (status failure)",
            "leave failures out with --skip-bad-rows");
  }
  LoggedRequest request;
  request.line = line;
  request.arrival_ns = start_ns(entry);
  request.prompt_tokens = tokens(entry, kPrompt);
  request.output_tokens = tokens(entry, kOutput);
  request.id = entry.texts[kId];
  request.session = entry.texts[kSession];
  request.model = entry.texts[kModelName];
  sink.add(std::move(request));
}

// What is no text stands as JSON writes it.
std::string text_of(const JsonElement& value) {
  std::string_view text;
  return value.get(text) == simdjson::SUCCESS ? std::string(text) : simdjson::to_string(value);
}

void visit_object(const JsonObject& object, uint64_t line, LogSink& sink) {
  Entry entry;
  entry.columns.fill(1);
  for (size_t i = 0; i < kNumLogColumns; ++i) {
    if (const auto value = member(object, kNames[i])) entry.texts[i] = text_of(*value);
  }
  for (const LogColumn column : kRequired) {
    if (!member(object, kNames[column])) {
      bad_row(1, fmt::format("{} is missing", kNames[column]),
              "export whole rows of LiteLLM_SpendLogs");
    }
  }
  read_entry(entry, line, sink);
}

// A record of CSV may go over several lines: a quoted cell holds prompts as they were.
class CsvRecords {
 public:
  explicit CsvRecords(ByteSource& text) : lines_(text) {}

  // False at the end. Throws BadRow for a record without end.
  bool next(std::string& record, uint64_t& line) {
    Line part;
    if (!lines_.next(part)) return false;
    line = part.number;
    record = part.text;
    bool is_open = std::ranges::count(record, '"') % 2 != 0;
    while ((is_open || part.is_too_long) && record.size() <= LineReader::kMaxBytes) {
      if (part.is_too_long) bad_row(1, "a line without end", "export one row per record");
      if (!lines_.next(part))
        bad_row(record.size() + 1, "the last row is cut off", "export it again");
      record += '\n';
      record += part.text;
      is_open ^= std::ranges::count(part.text, '"') % 2 != 0;
    }
    if (is_open) bad_row(1, "a quote that is not closed", "close it");
    is_whole_ = part.is_terminated;
    return true;
  }
  bool is_whole() const { return is_whole_; }

 private:
  LineReader lines_;
  bool is_whole_ = true;
};

class CsvTable {
 public:
  CsvTable(const std::string& header, LogSink& sink)
      : separator_(csv_separator(header)), sink_(sink) {
    num_columns_ =
        for_each_cell(header, separator_, [&](std::string_view name, uint32_t, size_t i) {
          const auto* known = std::ranges::find(kNames, name);
          if (known != kNames.end()) place_of_[size_t(known - kNames.begin())] = i + 1;
        });
    for (const LogColumn column : kRequired) {
      if (place_of_[column] != 0) continue;
      bad_row(header.size() + 1,
              fmt::format("column '{}' of a litellm trace is missing", kNames[column]),
              "export whole rows of LiteLLM_SpendLogs");
    }
  }

  void read_row(const std::string& record, uint64_t line, bool is_whole) {
    if (!is_whole) {
      bad_row(record.size() + 1, "the last row has no newline and may be cut off",
              "append a newline if the file is whole");
    }
    Entry entry;
    const size_t num_cells =
        for_each_cell(record, separator_, [&](std::string_view cell, uint32_t column, size_t i) {
          const auto* place = std::ranges::find(place_of_, i + 1);
          if (place == place_of_.end()) return;
          entry.texts[size_t(place - place_of_.begin())] = unquoted(cell);
          entry.columns[size_t(place - place_of_.begin())] = column;
        });
    if (num_cells != num_columns_) {
      bad_row(record.size() + 1,
              fmt::format("{} cells, but the header has {}", num_cells, num_columns_),
              "one cell for every column");
    }
    read_entry(entry, line, sink_);
  }

 private:
  char separator_;
  LogSink& sink_;
  size_t num_columns_ = 0;
  std::array<size_t, kNumLogColumns> place_of_{};  // 1-based; 0 = the table lacks it
};

void check_text(std::string_view record) {
  check_no_nul(record);
  check_utf8(record);
}

void read_csv(ByteSource& text, LogSink& sink) {
  CsvRecords records(text);
  std::string record;
  uint64_t line = 1;
  std::optional<CsvTable> table;
  for (bool is_at_end = false; !is_at_end;) {
    try {
      is_at_end = !records.next(record, line);
      if (is_at_end) break;
      check_text(record);
      if (table) {
        table->read_row(record, line, records.is_whole());
      } else {
        table.emplace(record, sink);
      }
    } catch (const BadRow& bad) {
      sink.refuse(line, bad);
      if (!table) return;  // a bad header: no row can be read
    }
  }
}

void read_spend_log(ByteSource& text, LogSink& sink) {
  std::unique_ptr<ByteSource> whole;
  const std::string head = peek(text, 64, whole);
  const size_t first = head.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string::npos && (head[first] == '{' || head[first] == '[');
  if (!is_json) return read_csv(*whole, sink);
  for_each_json_object(*whole, sink, [&](const JsonObject& object, uint64_t line) {
    visit_object(object, line, sink);
  });
}

bool is_spend_log(std::string_view head) {
  const auto has = [&](std::string_view word) { return head.find(word) != std::string_view::npos; };
  return has("request_id") && has("startTime") && has("completion_tokens");
}

}  // namespace

const LogFormat kLitellmLog = {is_spend_log, read_spend_log, true,
                               "export whole rows of LiteLLM_SpendLogs"};

}  // namespace loratory::sim
