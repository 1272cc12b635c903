#include "scheduler_sim/cost/operator_table.hpp"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>

#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/text.hpp"

// The compressed files, which operator_data.S puts into the library.
#define LORATORY_OPERATOR_TABLES(USE) \
  USE(a100_sxm)                       \
  USE(h100_sxm)                       \
  USE(h200_sxm)                       \
  USE(l40s)                           \
  USE(b200_sxm)                       \
  USE(rtx_pro_6000_server)
#define LORATORY_DECLARE(name)                           \
  extern const char loratory_operators_##name##_begin[]; \
  extern const char loratory_operators_##name##_end[];
extern "C" {
LORATORY_OPERATOR_TABLES(LORATORY_DECLARE)
}

namespace loratory::sim {
namespace {

struct Embedded {
  std::string_view name;
  const char* begin;
  const char* end;
};
#define LORATORY_EMBEDDED(name) \
  Embedded{#name, loratory_operators_##name##_begin, loratory_operators_##name##_end},
const std::array kEmbedded{LORATORY_OPERATOR_TABLES(LORATORY_EMBEDDED)};
#define LORATORY_NAME(name) std::string_view(#name),
constexpr std::array kTableNames{LORATORY_OPERATOR_TABLES(LORATORY_NAME)};

class TableReader {
 public:
  TableReader(std::string_view text, std::string_view place) : text_(text), place_(place) {}

  OperatorTable read() {
    OperatorTable table;
    table.name = header("loratory.operators/1");
    table.card = header("card");
    table.source = header("source");
    while (!text_.empty()) {
      const std::string_view line = next_line();
      if (line.starts_with("grid ")) {
        start_grid(line, table);
      } else if (table.grids.empty()) {
        fail("stands before the first grid");
      } else {
        add_row(line, table.grids.back());
      }
    }
    return table;
  }

 private:
  [[noreturn]] void fail(std::string_view problem) const {
    throw InputError(fmt::format("{}:{}", place_, line_), std::string(problem),
                     "make the table with scripts/make_operator_tables.py");
  }

  std::string_view next_line() {
    ++line_;
    const size_t end = std::min(text_.find('\n'), text_.size());
    const std::string_view line = text_.substr(0, end);
    text_.remove_prefix(std::min(end + 1, text_.size()));
    return line;
  }

  std::string header(std::string_view word) {
    const std::string_view line = next_line();
    if (!line.starts_with(word) || line.size() < word.size() + 2 || line[word.size()] != ' ') {
      fail(fmt::format("must be '{} ...'", word));
    }
    return std::string(line.substr(word.size() + 1));
  }

  template <typename T>
  T number(std::string_view word) const {
    const std::optional<T> value = to_number<T>(word);
    if (!value || !(*value >= 0)) fail(fmt::format("'{}' is not a number from 0", word));
    return *value;
  }

  void start_grid(std::string_view line, OperatorTable& table) const {
    const std::vector<std::string_view> words = split(line, ' ');
    if (words.size() < 5) fail("must be 'grid NAME KEYS AXIS x1 ...'");
    OperatorGrid& grid = table.grids.emplace_back();
    grid.name = words[1];
    grid.key_names = words[2];
    grid.num_keys = split(words[2], ',').size();
    for (size_t i = 4; i < words.size(); ++i) grid.axis.push_back(number<double>(words[i]));
    if (std::ranges::adjacent_find(grid.axis, std::greater_equal{}) != grid.axis.end()) {
      fail("the axis must ascend");
    }
  }

  // 130,000 numbers: digits by hand are five times as fast as from_chars.
  template <typename T>
  T next_digits(std::string_view line, size_t& at) const {
    constexpr size_t kMostDigits = 15;
    const char* const start = line.data() + std::min(at, line.size());
    const char* const end = line.data() + line.size();
    const char* p = start;
    int64_t value = 0;
    for (; p != end; ++p) {
      const auto digit = uint8_t(*p - '0');
      if (digit > 9) break;
      value = int64_t(10 * uint64_t(value) + digit);
    }
    const auto length = size_t(p - start);
    if (length == 0 || length > kMostDigits || (p != end && *p != ' ')) {
      fail("has too few numbers, or a word that is none");
    }
    at += length + 1;
    return T(value);
  }

  void add_row(std::string_view line, OperatorGrid& grid) const {
    const size_t before = grid.num_rows();
    size_t at = 0;
    for (size_t i = 0; i < grid.num_keys; ++i) grid.keys.push_back(next_digits<int64_t>(line, at));
    for (size_t i = 0; i < grid.axis.size(); ++i) grid.ns.push_back(next_digits<float>(line, at));
    if (at != line.size() + 1) fail("has too many numbers");
    if (before > 0 && !std::ranges::lexicographical_compare(grid.key(before - 1), grid.key(before)))
      fail("the keys must ascend");
  }

  std::string_view text_, place_;
  int64_t line_ = 0;
};

std::string unpack(const Embedded& data) {
  const auto size = size_t(data.end - data.begin);
  const unsigned long long unpacked = ZSTD_getFrameContentSize(data.begin, size);
  constexpr unsigned long long kMost = 1 << 26;
  LORATORY_ASSERT(unpacked <= kMost, "an embedded table says its size");
  std::string text(unpacked, '\0');
  const size_t written = ZSTD_decompress(text.data(), text.size(), data.begin, size);
  LORATORY_ASSERT(written == text.size(), "an embedded table is whole");
  return text;
}

}  // namespace

std::span<const float> OperatorGrid::find(std::span<const int64_t> wanted) const {
  size_t low = 0, high = num_rows();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (std::ranges::lexicographical_compare(key(middle), wanted)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == num_rows() || !std::ranges::equal(key(low), wanted)) return {};
  return times(low);
}

const OperatorGrid* OperatorTable::find(std::string_view grid) const {
  const auto found = std::ranges::find(grids, grid, &OperatorGrid::name);
  return found == grids.end() ? nullptr : &*found;
}

OperatorTable parse_operator_table(std::string_view text, std::string_view place) {
  return TableReader(text, place).read();
}

std::span<const std::string_view> operator_table_names() { return kTableNames; }

const OperatorTable& operator_table(std::string_view name) {
  static std::array<std::once_flag, kTableNames.size()> flags;
  static std::array<std::optional<OperatorTable>, kTableNames.size()> tables;
  const auto i = size_t(std::ranges::find(kTableNames, name) - kTableNames.begin());
  LORATORY_ASSERT(i < kTableNames.size(), "the library holds this table");
  std::call_once(flags[i],
                 [i] { tables[i] = parse_operator_table(unpack(kEmbedded[i]), kTableNames[i]); });
  return *tables[i];
}

}  // namespace loratory::sim
