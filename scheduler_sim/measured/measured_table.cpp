#include "scheduler_sim/measured/measured_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "reference/base/input_error.hpp"
#include "reference/base/wording.hpp"
#include "scheduler_sim/measured/bench_results.hpp"
#include "scheduler_sim/measured/server_log.hpp"
#include "scheduler_sim/measured/table_formats.hpp"
#include "scheduler_sim/trace/bad_row.hpp"
#include "scheduler_sim/trace/byte_source.hpp"
#include "scheduler_sim/trace/csv_cells.hpp"
#include "scheduler_sim/trace/line_reader.hpp"
#include "scheduler_sim/trace/row_fields.hpp"
#include "scheduler_sim/trace/text_encoding.hpp"

namespace loratory::sim {
namespace {

void check_text(const Line& line) {
  if (line.is_too_long) bad_row(1, "a line of over 16 MiB", "give a CSV of one row per run");
  check_no_nul(line.text);
  check_utf8(line.text);
}

// What the header says: the format, and which of its columns stands where.
class Header {
 public:
  explicit Header(const Line& line) {
    check_text(line);
    separator_ = csv_separator(line.text);
    for_each_cell(line.text, separator_, [&](std::string_view name, uint32_t column, size_t) {
      if (std::ranges::count(names_, name) > 0) {
        bad_row(column, fmt::format("column {} appears twice", excerpt(name)), "remove one");
      }
      names_.emplace_back(name);
      places_.push_back(column);
    });
    format_ = &*std::ranges::find_if(measured_formats(), [&](const MeasuredFormat& format) {
      return format.telltale.empty() || std::ranges::count(names_, format.telltale) > 0;
    });
    for (size_t i = 0; i < names_.size(); ++i) columns_.push_back(column_named(i));
  }

  const MeasuredFormat& format() const { return *format_; }

  MeasuredDraft read(const Line& line, std::span<const DescribedCell> also) const {
    check_text(line);
    MeasuredDraft draft;
    std::vector<std::string_view> given;
    const size_t num_cells =
        for_each_cell(line.text, separator_, [&](std::string_view text, uint32_t place, size_t i) {
          if (i >= columns_.size() || columns_[i] == nullptr || text.empty()) return;
          columns_[i]->read({text, place}, draft);
          given.push_back(names_[i]);
        });
    if (num_cells != columns_.size()) {
      bad_row(line.text.size() + 1,
              fmt::format("{} cells, but the header has {}", num_cells, columns_.size()),
              "one cell for every column; an empty one is a figure that is not known");
    }
    if (format_->refuses_unknown) add_described(also, std::move(given), draft);
    format_->finish(draft);
    return draft;
  }

 private:
  const MeasuredColumn* column_named(size_t i) const {
    const auto& columns = format_->columns;
    const auto found = std::ranges::find(columns, names_[i], &MeasuredColumn::name);
    if (found != columns.end()) return &*found;
    if (!format_->refuses_unknown) return nullptr;
    std::vector<std::string> known;
    for (const MeasuredColumn& column : columns) known.push_back(column.name);
    bad_row(places_[i], fmt::format("{} is no column of measured runs", shown(names_[i])),
            did_you_mean(names_[i], known, "traces/SCHEMA.md has the columns"));
  }

  char separator_ = ',';
  std::vector<std::string> names_;
  std::vector<uint32_t> places_;
  const MeasuredFormat* format_ = nullptr;
  std::vector<const MeasuredColumn*> columns_;  // of each cell; null = says nothing
};

class Reading {
 private:
  [[noreturn]] void fail(uint64_t line_number, const BadRow& bad) const {
    throw InputError(fmt::format("{}:{}:{}", table_.source, line_number, bad.column), bad.rule,
                     bad.remedy);
  }

  template <typename Read>
  auto guarded(const Line& line, Read read) const {
    try {
      return read();
    } catch (const BadRow& bad) {
      fail(line.number, bad);
    }
  }

 public:
  Reading(std::unique_ptr<ByteSource> raw, std::string_view name,
          std::span<const DescribedCell> also)
      : also_(also),
        raw_(std::move(raw)),
        unpacked_(decompressed(raw_, std::string(name))),
        text_(utf8_text(*unpacked_, std::string(name))) {
    table_.source = name;
    file_ = std::filesystem::path(name).filename().string();
  }

  MeasuredTable run() {
    std::unique_ptr<ByteSource> whole;
    constexpr size_t kHead = 1 << 16;
    const std::string head = peek(*text_, kHead, whole);
    if (is_json(head)) {
      read_results(*whole);
    } else if (is_server_log(head)) {
      read_start(*whole);
    } else {
      read_csv(*whole);
    }
    table_.checksum = raw_.checksum();
    return std::move(table_);
  }

 private:
  void read_csv(ByteSource& text) {
    LineReader lines(text);
    Line line;
    if (!lines.next(line)) fail(1, {1, "the file is empty", "give a CSV of measured runs"});
    const Header header = guarded(line, [&] { return Header(line); });
    table_.format = header.format().name;
    table_.origin = header.format().origin;
    if (!also_.empty() && !header.format().refuses_unknown) {
      fail(1, {1, fmt::format("a table of format {} describes its servers itself", table_.format),
               fmt::format("leave out {}", also_[0].place)});
    }
    while (lines.next(line)) {
      if (line.text.empty()) continue;
      add(line.number, guarded(line, [&] {
            if (!text.is_truncated()) check_is_whole(line);
            return header.read(line, also_);
          }));
    }
    if (text.is_truncated()) {
      fail(line.number + 1, {1, "the compressed data stops in the middle", "fetch it again"});
    }
    require_rows(line.number + 1);
  }

  void read_results(ByteSource& text) {
    table_.format = "bench-results";
    read_bench_results(text, table_.source, also_,
                       [&](MeasuredDraft draft, uint64_t line) { add(line, std::move(draft)); });
    require_rows(1);
  }

  void read_start(ByteSource& text) {
    table_.format = "server-log";
    std::vector<DescribedCell> cells(also_.begin(), also_.end());
    const std::vector<DescribedCell> own = read_server_log(text, table_.source);
    cells.insert(cells.end(), own.begin(), own.end());
    MeasuredDraft draft;
    add_described(cells, {}, draft);
    // Without a rate they are no load.
    draft.rates_rps.clear();
    draft.rate_counts.clear();
    measured_formats().back().finish(draft);
    add(1, std::move(draft));
  }

  void require_rows(uint64_t line) const {
    if (!table_.runs.empty() || !table_.skipped.empty()) return;
    fail(line, {1, "the table has no rows", "give one row for each measured run"});
  }

  void add(uint64_t line, MeasuredDraft draft) {
    std::string place = fmt::format("{}:{}", file_, line);
    if (!draft.skip.empty()) {
      table_.skipped.push_back({std::move(place), std::move(draft.skip)});
      return;
    }
    draft.run.place = std::move(place);
    table_.runs.push_back(std::move(draft.run));
  }

  std::span<const DescribedCell> also_;
  MeasuredTable table_;
  std::string file_;
  ChecksummedSource raw_;
  std::unique_ptr<ByteSource> unpacked_, text_;
};

}  // namespace

MeasuredTable read_measured_runs(const std::string& path, std::span<const DescribedCell> also) {
  return Reading(open_file(path), path, also).run();
}

MeasuredTable read_measured_runs_from(std::string_view bytes, std::string_view name,
                                      std::span<const DescribedCell> also) {
  return Reading(open_bytes(bytes), name, also).run();
}

std::vector<DescribedCell> read_server_log(const std::string& path) {
  const std::unique_ptr<ByteSource> raw = open_file(path);
  const std::unique_ptr<ByteSource> unpacked = decompressed(*raw, path);
  const std::unique_ptr<ByteSource> text = utf8_text(*unpacked, path);
  return read_server_log(*text, path);
}

}  // namespace loratory::sim
