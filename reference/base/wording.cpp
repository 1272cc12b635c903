#include "reference/base/wording.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

namespace loratory {
namespace {

char lower(char c) { return char(std::tolower(uint8_t(c))); }

bool is_letter_or_digit(char c) { return std::isalnum(uint8_t(c)) != 0; }

bool begins_with(std::string_view text, std::string_view begin) {
  const auto same = [](char a, char b) { return lower(a) == lower(b); };
  return std::ranges::equal(text.substr(0, begin.size()), begin, same);
}

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

// "h10" for H100-80. Of one letter, or of dashes, there are too many.
std::string_view shortest_that_begins(std::string_view name,
                                      std::span<const std::string> candidates) {
  constexpr int64_t kFewestLetters = 2;
  if (std::ranges::count_if(name, is_letter_or_digit) < kFewestLetters) return {};
  std::string_view best;
  for (const std::string& candidate : candidates) {
    if (!begins_with(candidate, name)) continue;
    if (best.empty() || candidate.size() < best.size()) best = candidate;
  }
  return best;
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
  return best.empty() ? shortest_that_begins(name, candidates) : best;
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
