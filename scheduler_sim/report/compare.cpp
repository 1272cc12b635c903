#include "scheduler_sim/report/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/units.hpp"
#include "scheduler_sim/report/format.hpp"

namespace loratory::sim {
namespace {

using Config = ResultsFile::Config;

struct Pair {
  const Config* a;
  const Config* b;
  bool both_fit() const { return a->feasible && b->feasible; }
};

// What the table shows, of all measures.
constexpr const char* kShown[] = {"goodput",           "slo_attainment",  "throughput",
                                  "output_throughput", "ttft_p50",        "ttft_p99",
                                  "ttft_pslo",         "tpot_p50",        "tpot_p99",
                                  "e2el_p99",          "queue_p99",       "adapter_gpu_hit_ratio",
                                  "adapter_copies",    "num_preemptions", "kv_blocks"};

double value_of(const Config& config, const Measure& measure) {
  return config.values[size_t(&measure - measures().data())];
}

double value_of(const Config& config, const char* name) {
  const Measure* const measure = find_measure(name);
  LORATORY_ASSERT(measure != nullptr, "a measure of the table");
  return value_of(config, *measure);
}

bool same_key(const Config& a, const Config& b) {
  return a.max_loras == b.max_loras && a.max_cpu_loras == b.max_cpu_loras &&
         a.num_replicas == b.num_replicas;
}

std::string key_text(const Config& config) {
  const std::string replicas =
      config.num_replicas > 1 ? fmt::format(" x {} replicas", config.num_replicas) : "";
  return fmt::format("{}/{}{}", config.max_loras, config.max_cpu_loras, replicas);
}

std::string pair_text(const Pair& pair) {
  const std::string a = key_text(*pair.a), b = key_text(*pair.b);
  return a == b ? a : fmt::format("{} against {}", a, b);
}

std::vector<Pair> pairs_of(const ResultsFile& a, const ResultsFile& b) {
  if (a.configs.size() == 1 && b.configs.size() == 1) return {{&a.configs[0], &b.configs[0]}};
  std::vector<Pair> pairs;
  for (const Config& config : a.configs) {
    const auto match = std::ranges::find_if(
        b.configs, [&](const Config& other) { return same_key(config, other); });
    if (match != b.configs.end()) pairs.push_back({&config, &*match});
  }
  return pairs;
}

std::string keys_of(const ResultsFile& file) {
  std::string text;
  for (const Config& config : file.configs) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", key_text(config));
  }
  return report::clip(text, 60);
}

// Values of one name stand side by side.
std::map<std::string, std::string> by_name(const ResultsFile& file) {
  std::map<std::string, std::string> values;
  for (const auto& setting : file.settings) {
    std::string& value = values[setting.name];
    value += value.empty() ? setting.value : ", " + setting.value;
  }
  return values;
}

struct Difference {
  std::string name, a, b;
};

std::vector<Difference> differences(const ResultsFile& a, const ResultsFile& b) {
  const auto in_a = by_name(a), in_b = by_name(b);
  std::set<std::string> names;
  for (const auto& [name, value] : in_a) names.insert(name);
  for (const auto& [name, value] : in_b) names.insert(name);
  std::vector<Difference> all;
  for (const std::string& name : names) {
    const auto text = [&](const auto& values) {
      const auto at = values.find(name);
      return at == values.end() ? std::string("-") : at->second;
    };
    const Difference difference{name, text(in_a), text(in_b)};
    if (difference.a != difference.b) all.push_back(difference);
  }
  return all;
}

std::string settings_table(const std::vector<Difference>& all) {
  if (all.empty()) return "Settings: no difference\n";
  std::string text = fmt::format("{:<34}{:<33}{}\n", "Settings that differ", "A", "B");
  for (const Difference& d : all) {
    text += fmt::format("  {:<32}{:<33}{}\n", report::clip(d.name, 31), report::clip(d.a, 32),
                        report::clip(d.b, 33));
  }
  return text;
}

std::string cell(double value, MeasureUnit unit) {
  if (std::isnan(value)) return "-";
  if (unit == MeasureUnit::milliseconds) return format_ms(value);
  if (unit == MeasureUnit::fraction) return format_percent(value);
  if (unit == MeasureUnit::count) return format_count(std::llround(value));
  return format_number(value) + " /s";
}

std::string change_cell(double a, double b) {
  if (a == b || std::isnan(a) || std::isnan(b)) return "";
  const double percent = 100 * relative_change(a, b);
  if (!std::isfinite(percent)) return "new";
  return fmt::format("{:+.{}f} %", percent, std::fabs(percent) < 10 ? 1 : 0);
}

// "[7.75, 8]" over the seeds; "" without seeds.
std::string band(double least, double most, MeasureUnit unit) {
  if (std::isnan(least) || std::isnan(most) || least == most) return "";
  return fmt::format(" [{}, {}]", cell(least, unit), cell(most, unit));
}

std::string band_of(const Config& config, const Measure& measure) {
  if (measure.name == "goodput") return band(config.goodput_min, config.goodput_max, measure.unit);
  if (measure.name == "ttft_pslo") {
    return band(config.ttft_min_ms, config.ttft_max_ms, measure.unit);
  }
  return "";
}

std::string row(const Pair& pair, const Measure& measure) {
  const double a = value_of(*pair.a, measure), b = value_of(*pair.b, measure);
  const std::string b_cell = cell(b, measure.unit) + band_of(*pair.b, measure);
  const std::string change = change_cell(a, b);
  return fmt::format("  {:<22}{:<33}{}\n", measure.name,
                     cell(a, measure.unit) + band_of(*pair.a, measure),
                     change.empty() ? b_cell : fmt::format("{:<33}{:>8}", b_cell, change));
}

std::string fit_text(const Config& config) { return config.feasible ? "fits" : config.verdict; }

std::string pair_table(const Pair& pair) {
  std::string text = fmt::format("\nmax_loras/max_cpu_loras {}\n", pair_text(pair));
  if (!pair.both_fit()) {
    return text + fmt::format("  A {}\n  B {}\n", report::clip(fit_text(*pair.a), 94),
                              report::clip(fit_text(*pair.b), 94));
  }
  for (const char* name : kShown) text += row(pair, *find_measure(name));
  return text;
}

bool are_equal(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

bool are_equal(const Pair& pair) {
  return pair.a->feasible == pair.b->feasible && same_key(*pair.a, *pair.b) &&
         pair.a->event_log_hash == pair.b->event_log_hash &&
         std::ranges::equal(pair.a->values, pair.b->values,
                            [](double a, double b) { return are_equal(a, b); }) &&
         are_equal(pair.a->goodput_min, pair.b->goodput_min) &&
         are_equal(pair.a->goodput_max, pair.b->goodput_max);
}

// "12 % more"; "as much" when the difference would be shown as none.
std::string amount(double a, double b, std::string_view more, std::string_view less,
                   std::string_view same) {
  const double percent = 100 * relative_change(a, b);
  if (!std::isfinite(percent)) return fmt::format("{} than none", more);
  if (std::fabs(percent) < 0.05) return std::string(same);
  const double size = std::fabs(percent);
  return fmt::format("{:.{}f} % {}", size, size < 10 ? 1 : 0, percent > 0 ? more : less);
}

Pair headline_pair(const ResultsFile& a, const ResultsFile& b, const std::vector<Pair>& pairs) {
  if (a.recommended >= 0 && b.recommended >= 0) {
    return {&a.configs[size_t(a.recommended)], &b.configs[size_t(b.recommended)]};
  }
  return *std::ranges::max_element(pairs, {}, [](const Pair& pair) {
    return pair.both_fit() ? value_of(*pair.a, "goodput") : -1;
  });
}

std::string sentence(const ResultsFile& a, const ResultsFile& b, const std::vector<Pair>& pairs) {
  const Pair pair = headline_pair(a, b, pairs);
  const bool recommended = a.recommended >= 0 && b.recommended >= 0;
  const std::string which = fmt::format("{}{}", recommended ? "recommended " : "", pair_text(pair));
  if (!pair.both_fit()) {
    return fmt::format("At {}, {}.", which,
                       pair.a->feasible   ? "only A fits in memory"
                       : pair.b->feasible ? "only B fits in memory"
                                          : "neither fits in memory");
  }
  const char* served = a.has_slo && b.has_slo ? "goodput" : "throughput";
  return fmt::format(
      "At {}, B serves {}{}; TTFT p99 {}, TPOT p99 {}.", which,
      amount(value_of(*pair.a, served), value_of(*pair.b, served), "more", "less", "as much"),
      a.has_slo && b.has_slo ? " within the SLO" : "",
      amount(value_of(*pair.a, "ttft_p99"), value_of(*pair.b, "ttft_p99"), "higher", "lower",
             "the same"),
      amount(value_of(*pair.a, "tpot_p99"), value_of(*pair.b, "tpot_p99"), "higher", "lower",
             "the same"));
}

std::string unmatched(const ResultsFile& in, const ResultsFile& other, std::string_view name) {
  std::string text;
  if (in.configs.size() == 1 && other.configs.size() == 1) return text;
  for (const Config& config : in.configs) {
    const bool is_known = std::ranges::any_of(
        other.configs, [&](const Config& match) { return same_key(config, match); });
    if (!is_known) text += fmt::format("{}{}", text.empty() ? "" : ", ", key_text(config));
  }
  return text.empty() ? "" : fmt::format("\nOnly in {}: {}\n", name, report::clip(text, 88));
}

// What stands in the line of a condition that holds: the first pair that makes it hold, and how
// many more do.
std::string failure(const Condition& condition, const std::vector<Pair>& pairs) {
  std::string line;
  size_t num_more = 0;
  for (const Pair& pair : pairs) {
    if (!pair.a->feasible) continue;
    const double a = value_of(*pair.a, *condition.measure);
    const double b = value_of(*pair.b, *condition.measure);
    if (pair.b->feasible && !std::isnan(b) && !condition.holds(a, b)) continue;
    if (!line.empty()) {
      ++num_more;
      continue;
    }
    const MeasureUnit unit = condition.measure->unit;
    line = fmt::format("fail-if {}: {}", to_text(condition), pair_text(pair));
    line += pair.b->feasible
                ? fmt::format(", {} -> {} {}", cell(a, unit), cell(b, unit), change_cell(a, b))
                : " no longer fits in memory";
    while (line.ends_with(' ')) line.pop_back();
  }
  if (num_more > 0) line += fmt::format(", and {} more", num_more);
  return line;
}

}  // namespace

Comparison compare(const ResultsFile& a, const ResultsFile& b,
                   std::span<const Condition> conditions) {
  const std::vector<Pair> pairs = pairs_of(a, b);
  if (pairs.empty()) {
    throw InputError(b.path,
                     fmt::format("has none of the configurations of {}: {} there, {} here", a.path,
                                 keys_of(a), keys_of(b)),
                     "size both with the same --max-loras and --max-cpu-loras");
  }
  Comparison comparison;
  const std::vector<Difference> settings = differences(a, b);
  std::string& text = comparison.text;
  text = fmt::format("A  {}\nB  {}\n\n", a.path, b.path);
  const std::string only = unmatched(a, b, "A") + unmatched(b, a, "B");
  const bool is_same = only.empty() && a.recommended == b.recommended &&
                       std::ranges::all_of(pairs, [](const Pair& p) { return are_equal(p); });
  if (is_same && settings.empty()) {
    text += "no difference\n";
  } else {
    text += settings_table(settings);
    if (!is_same) {
      for (const Pair& pair : pairs) text += pair_table(pair);
      text += only;
    }
    text += "\n" + (is_same ? "The settings differ, the results do not." : sentence(a, b, pairs)) +
            "\n";
  }
  for (const Condition& condition : conditions) {
    if (std::string line = failure(condition, pairs); !line.empty()) {
      comparison.failures.push_back(std::move(line));
    }
  }
  return comparison;
}

}  // namespace loratory::sim
