#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler_sim/trace/bad_row.hpp"
#include "scheduler_sim/trace/csv_cells.hpp"
#include "scheduler_sim/trace/row_fields.hpp"
#include "scheduler_sim/trace/row_parser.hpp"

namespace loratory::sim {
namespace {

// The last rows of AzureLLMInferenceTrace_conv.csv and _code.csv. Microsoft's files end without a
// newline, and by themselves such rows can not be told from rows that were cut off.
constexpr std::array<std::string_view, 2> kPublishedLastRows = {
    "2023-11-16 19:14:08.4025270,197,183", "2023-11-16 19:14:19.9280160,549,173"};

bool is_published_last_row(const Line& line) {
  return std::ranges::count(kPublishedLastRows, line.text) > 0;
}

class CsvParser final : public RowParser {
 public:
  CsvParser(const Schema& schema, const Line& header) : schema_(schema) {
    check_no_nul(header.text);
    check_utf8(header.text);
    separator_ = csv_separator(header.text);
    for_each_cell(header.text, separator_, [&](std::string_view name, uint32_t column, size_t) {
      specs_.push_back(&spec_of(name, column));
    });
    check_required(header);
  }

  void parse(const Line& line, Row& row, TraceBuilder&) override {
    check_no_nul(line.text);
    check_utf8(line.text);
    if (!is_published_last_row(line)) check_is_whole(line);
    const size_t num_cells =
        for_each_cell(line.text, separator_, [&](std::string_view text, uint32_t column, size_t i) {
          if (i >= specs_.size()) return;
          set_field(row, schema_, *specs_[i], text, column,
                    /*has_decimal_comma=*/separator_ != ',');
        });
    if (num_cells != specs_.size()) {
      bad_row(line.text.size() + 1,
              fmt::format("{} cells, but the header has {}", num_cells, specs_.size()),
              fmt::format(
                  "one cell for every column, with '{}' between them",
                  separator_ == '\t' ? std::string_view("\\t") : std::string_view(&separator_, 1)));
    }
  }

 private:
  const ColumnSpec& spec_of(std::string_view name, uint32_t column) const {
    const auto spec = std::ranges::find(schema_.columns, name, &ColumnSpec::name);
    if (spec == schema_.columns.end()) {
      bad_row(column, fmt::format("unknown column {} in a {} trace", excerpt(name), schema_.name),
              "remove it, or name another format with --format");
    }
    if (std::ranges::count(specs_, &*spec) > 0) {
      bad_row(column, fmt::format("column {} appears twice", excerpt(name)), "remove one");
    }
    return *spec;
  }

  void check_required(const Line& header) const {
    for (const ColumnSpec& spec : schema_.columns) {
      if (!spec.is_required || std::ranges::count(specs_, &spec) > 0) continue;
      bad_row(header.text.size() + 1,
              fmt::format("column '{}' of a {} trace is missing", spec.name, schema_.name),
              "add it, or name another format with --format");
    }
  }

  const Schema& schema_;
  char separator_ = ',';
  std::vector<const ColumnSpec*> specs_;  // of each column of this file
};

}  // namespace

std::unique_ptr<RowParser> make_csv_parser(const Schema& schema, const Line& header) {
  return std::make_unique<CsvParser>(schema, header);
}

}  // namespace loratory::sim
