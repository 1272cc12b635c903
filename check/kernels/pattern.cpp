#include "check/kernels/pattern.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

namespace loratory::check {
namespace {

using Values = std::set<int64_t>;

std::string list(const Values& values) {
  if (values.size() <= 4) return fmt::format("{}", fmt::join(values, ", "));
  return fmt::format("{}, {}, ... {}", *values.begin(), *std::next(values.begin()),
                     *values.rbegin());
}

// How the values that are wrong lie among all that are covered; "" if nothing can be said.
std::string among(const Values& wrong, const Values& all, std::string_view one,
                  std::string_view many) {
  if (wrong == all) return "";
  if (wrong.size() == 1) return fmt::format("{} {} alone", one, *wrong.begin());
  const int64_t first = *wrong.begin(), last = *wrong.rbegin();
  const bool is_tail = std::distance(all.lower_bound(first), all.end()) == ptrdiff_t(wrong.size());
  if (is_tail) return fmt::format("{} from {} on", many, first);
  const bool is_head = std::distance(all.begin(), all.upper_bound(last)) == ptrdiff_t(wrong.size());
  if (is_head) return fmt::format("{} up to {}", many, last);
  int64_t step = 0;
  for (const int64_t value : wrong) step = std::gcd(step, value - first);
  if (step > 1) {
    Values comb;
    for (const int64_t value : all) {
      if (value >= first && value <= last && (value - first) % step == 0) comb.insert(value);
    }
    if (comb == wrong) return fmt::format("every {}th {} from {} on", step, one, first);
  }
  const auto between = std::distance(all.lower_bound(first), all.upper_bound(last));
  if (between == ptrdiff_t(wrong.size())) return fmt::format("{} {} to {}", many, first, last);
  if (wrong.size() <= 4 || wrong.size() * 2 <= all.size()) {
    return fmt::format("{} {} ({} of {})", many, list(wrong), wrong.size(), all.size());
  }
  return "";
}

struct Axis {
  std::string_view one, many;
  std::function<void(const Stretch&, Values&)> add_all;  // values of a whole stretch
  std::function<int64_t(const Wrong&)> of;
};

std::vector<Axis> axes_of(const Case& c) {
  const auto of_stretch = [](auto field) {
    return [field](const Stretch& s, Values& out) { out.insert(int64_t(s.*field)); };
  };
  const bool shrinks = c.shrinks();
  std::vector<Axis> out{
      {"row", "rows", of_stretch(&Stretch::row), [](const Wrong& w) { return w.at.row; }},
      {shrinks ? "rank" : "column", shrinks ? "ranks" : "columns",
       [](const Stretch& s, Values& v) {
         for (int64_t i = 0; i < s.count; ++i) v.insert(s.first + i);
       },
       [](const Wrong& w) { return w.at.first + w.i; }}};
  if (c.num_slots() > 1) {
    out.push_back({"rows of slot", "rows of slots", of_stretch(&Stretch::slot),
                   [](const Wrong& w) { return int64_t(w.at.slot); }});
  }
  if (c.num_out.size() > 1) {
    out.push_back({"slice", "slices", of_stretch(&Stretch::slice),
                   [](const Wrong& w) { return int64_t(w.at.slice); }});
  }
  if (c.has_experts()) {
    out.push_back({"expert", "experts", of_stretch(&Stretch::expert),
                   [](const Wrong& w) { return int64_t(w.at.expert); }});
  }
  return out;
}

}  // namespace

std::string pattern_of(const Case& c, const std::vector<Stretch>& covered,
                       const std::vector<Wrong>& wrong) {
  if (wrong.empty()) return "";
  int64_t num_covered = 0;
  for (const Stretch& s : covered) num_covered += s.count;
  if (num_covered == int64_t(wrong.size())) return num_covered > 1 ? "every covered element" : "";
  std::string out;
  for (const Axis& axis : axes_of(c)) {
    Values all, found;
    for (const Stretch& s : covered) axis.add_all(s, all);
    for (const Wrong& w : wrong) found.insert(axis.of(w));
    const std::string words = among(found, all, axis.one, axis.many);
    if (!words.empty()) out += (out.empty() ? "" : "; ") + words;
  }
  return out;
}

}  // namespace loratory::check
