#include "reference/base/wording.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

namespace loratory {
namespace {

char lower(char c) { return char(std::tolower(uint8_t(c))); }

// Optimal string alignment: Damerau-Levenshtein in which no part is edited twice.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last, last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                           lower(a[i - 2]) == lower(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = last;
    last = row;
  }
  return last[b.size()];
}

}  // namespace

std::string shown(std::string_view text) {
  constexpr size_t kMostBytes = 60;
  if (text.size() <= kMostBytes) return fmt::format("'{}'", text);
  size_t end = 40;
  while (end > 0 && (uint8_t(text[end]) & 0xC0) == 0x80) --end;  // not within a UTF-8 character
  return fmt::format("'{}...' ({} bytes)", text.substr(0, end), text.size());
}

std::string_view nearest(std::string_view name, std::span<const std::string> candidates) {
  constexpr size_t kLongestName = 100;  // longer ones are no slips, and would take long
  if (name.size() > kLongestName) return {};
  std::string_view best;
  size_t least = (name.size() + 2) / 3 + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(name, candidate);
    if (distance < least) least = distance, best = candidate;
  }
  return best;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> candidates,
                         std::string_view otherwise) {
  const std::string_view guess = nearest(name, candidates);
  return guess.empty() ? std::string(otherwise) : fmt::format("did you mean '{}'?", guess);
}

std::string did_you_mean_other(std::string_view name, std::span<const std::string> candidates,
                               std::string_view otherwise) {
  const bool is_known = std::ranges::find(candidates, name) != candidates.end();
  return is_known ? std::string(otherwise) : did_you_mean(name, candidates, otherwise);
}

}  // namespace loratory
