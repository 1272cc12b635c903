#include "scheduler_sim/trace/client_windows.hpp"

#include <fmt/format.h>

#include <array>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/trace/bad_row.hpp"
#include "scheduler_sim/trace/byte_source.hpp"
#include "scheduler_sim/trace/csv_cells.hpp"
#include "scheduler_sim/trace/line_reader.hpp"
#include "scheduler_sim/trace/numbers.hpp"
#include "scheduler_sim/trace/row_fields.hpp"
#include "scheduler_sim/trace/text_encoding.hpp"

namespace loratory::sim {
namespace {

constexpr std::string_view kHeader =
    "category,model,client_id,window_start_s,rate_rps,cv,pattern,shape,scale";

enum Column : size_t {
  kCategory,
  kModel,
  kClientId,
  kWindowStart,
  kRate,
  kCv,
  kPattern,
  kShape,
  kScale,
  kNumColumns
};

struct Cell {
  std::string_view text;
  uint32_t column = 0;
};
using Cells = std::array<Cell, kNumColumns>;

Cells split_window(std::string_view line) {
  Cells cells;
  const size_t count =
      for_each_cell(line, ',', [&](std::string_view text, uint32_t column, size_t i) {
        if (i < cells.size()) cells[i] = {text, column};
      });
  if (count != kNumColumns) {
    bad_row(line.size() + 1, fmt::format("{} cells", count),
            fmt::format("a window has {}, without quotes", size_t{kNumColumns}));
  }
  return cells;
}

std::string name(const Cell& cell) {
  if (cell.text.empty()) bad_row(cell.column, "an empty name", "give one");
  return std::string(cell.text);
}

int64_t integer(const Cell& cell, int64_t high) {
  int64_t value = 0;
  if (parse_integer(cell.text, value) != Parse::good || value < 0 || value > high) {
    bad_row(cell.column, "not a whole number: " + excerpt(cell.text),
            fmt::format("it must be in 0..{}", high));
  }
  return value;
}

double positive(const Cell& cell, bool may_be_zero) {
  double value = 0;
  if (parse_double(cell.text, value) != Parse::good || value < 0 || (value == 0 && !may_be_zero)) {
    bad_row(cell.column, "not a positive number: " + excerpt(cell.text), "write a decimal number");
  }
  return value;
}

GapLaw gap_law(const Cell& cell) {
  if (cell.text.empty()) return GapLaw::none;
  if (cell.text == "Gamma") return GapLaw::gamma;
  if (cell.text == "Weibull") return GapLaw::weibull;
  bad_row(cell.column, "unknown pattern " + excerpt(cell.text), "use Gamma, Weibull or nothing");
}

double parameter_of(GapLaw law, const Cell& cell) {
  if (law != GapLaw::none) return positive(cell, false);
  if (!cell.text.empty()) bad_row(cell.column, "a parameter without a pattern", "leave it empty");
  return 0;
}

ClientWindow parse_window(const Line& line) {
  if (line.is_too_long) bad_row(1, "a line without end", "not a table of client windows");
  check_no_nul(line.text);
  check_utf8(line.text);
  check_is_whole(line);
  const Cells cells = split_window(line.text);
  ClientWindow window;
  window.category = name(cells[kCategory]);
  window.model = name(cells[kModel]);
  window.client_id = uint32_t(integer(cells[kClientId], UINT32_MAX));
  window.window_start_s = integer(cells[kWindowStart], kMaxTimeNs / 1'000'000'000);
  window.rate_rps = positive(cells[kRate], true);
  window.cv = cells[kCv].text.empty() ? 0 : positive(cells[kCv], true);
  window.pattern = gap_law(cells[kPattern]);
  window.shape = parameter_of(window.pattern, cells[kShape]);
  window.scale = parameter_of(window.pattern, cells[kScale]);
  return window;
}

std::vector<ClientWindow> read_windows(ByteSource& raw, const std::string& file) {
  const std::unique_ptr<ByteSource> unpacked = decompressed(raw, file);
  const std::unique_ptr<ByteSource> plain = utf8_text(*unpacked, file);
  LineReader lines(*plain);
  Line line;
  if (!lines.next(line) || line.text != kHeader) {
    throw InputError(file + ":1:1", "not a table of client windows",
                     fmt::format("its header is {}", kHeader));
  }
  std::vector<ClientWindow> windows;
  while (lines.next(line)) {
    try {
      windows.push_back(parse_window(line));
    } catch (const BadRow& bad) {
      throw InputError(fmt::format("{}:{}:{}", file, line.number, bad.column), bad.rule,
                       bad.remedy);
    }
  }
  if (lines.is_truncated()) {
    throw InputError(fmt::format("{}:{}:1", file, line.number + 1),
                     "the compressed data stops in the middle", "fetch the file again");
  }
  return windows;
}

}  // namespace

std::vector<ClientWindow> read_client_windows(const std::string& path) {
  return read_windows(*open_file(path), path);
}

std::vector<ClientWindow> read_client_windows_from(std::string_view bytes, std::string_view name) {
  return read_windows(*open_bytes(bytes), std::string(name));
}

}  // namespace loratory::sim
