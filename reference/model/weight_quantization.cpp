#include "reference/model/weight_quantization.hpp"

#include "reference/base/check.hpp"
#include "reference/base/integers.hpp"
#include "reference/base/text.hpp"

namespace loratory::reference {
namespace {

// '*' stands for any text.
bool matches_glob(std::string_view text, std::string_view pattern) {
  size_t t = 0, p = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++, resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++t, ++p;
    } else if (star != std::string_view::npos) {
      p = star + 1, t = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

// Where the path begins, or any of its dotted names does.
bool names_part_of(std::string_view path, std::string_view entry) {
  for (size_t begin = 0; begin != std::string_view::npos;) {
    const std::string_view rest = path.substr(begin);
    for (size_t end = 0; end != std::string_view::npos;) {
      end = rest.find('.', end + 1);
      if (matches_glob(rest.substr(0, end), entry)) return true;
    }
    const size_t dot = path.find('.', begin);
    begin = dot == std::string_view::npos ? dot : dot + 1;
  }
  return false;
}

}  // namespace

bool is_ignored(const WeightQuantization& quantization, std::string_view path) {
  // Wrappers put "language_model." and more before "layers"; what follows is the same everywhere.
  const std::string_view layers = "layers.";
  const size_t at = path.find(layers);
  if (at != std::string_view::npos) path.remove_prefix(at);
  for (std::string_view entry : quantization.ignored) {
    const size_t entry_at = entry.find(layers);
    if (entry_at != std::string_view::npos && entry_at > 0 && entry[entry_at - 1] == '.') {
      entry.remove_prefix(entry_at);
    }
    if (names_part_of(path, entry)) return true;
  }
  return false;
}

int64_t quantized_bytes(const WeightQuantization& q, int64_t rows, int64_t columns) {
  LORATORY_ASSERT(q.bits > 0, "only quantised weights have a quantised size");
  const int64_t block_rows = q.block_rows > 0 ? q.block_rows : rows;
  const int64_t block_columns = q.block_columns > 0 ? q.block_columns : columns;
  const int64_t factors = ceil_div(rows, block_rows) * ceil_div(columns, block_columns);
  int64_t bytes = ceil_div<int64_t>(rows * columns * q.bits, 8) + factors * q.factor_bytes;
  if (q.zero_points) bytes += ceil_div<int64_t>(factors * q.bits, 8);
  if (q.input_order) bytes += 4 * columns;
  return bytes;
}

WeightQuantization fp8_on_load() {
  WeightQuantization q;
  q.method = "fp8";
  q.bits = 8;
  q.is_float = q.activations = true;
  return q;
}

}  // namespace loratory::reference
