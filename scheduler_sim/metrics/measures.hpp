#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace loratory::sim {

enum class MeasureUnit : uint8_t { milliseconds, per_second, fraction, count };

/// A figure of one configuration, as `loratory compare` calls it.
struct Measure {
  std::string name;  ///< "ttft_p99", "goodput"
  std::string key;   ///< in results.json: "p99_ttft_ms", "request_goodput"
  MeasureUnit unit = MeasureUnit::count;
};

/// mean, std, p50, p90, p95, p99 and pslo of ttft, tpot, itl, e2el and queue; then rates, ratios
/// and counts.
const std::vector<Measure>& measures();

/// By its name or its key; null if there is none.
const Measure* find_measure(std::string_view name);

/// One condition of `--fail-if`.
///
///   measure ('<' | '>') ('+' | '-') number '%'      the change from A to B
///   measure ('<' | '>') number [unit]               the value in B
///
/// The unit is ms or s of a latency and % of a ratio; without one a latency is in milliseconds.
/// Blanks are allowed between the parts.
struct Condition {
  const Measure* measure = nullptr;
  bool is_above = true;
  bool is_change = false;
  double limit = 0;  ///< percent of A's value; else in the unit of the results file

  /// Does it hold? A change away from zero is larger than any limit.
  bool holds(double a, double b) const;
};

/// Throws InputError at --fail-if, with the nearest name of a measure.
Condition parse_condition(std::string_view text);

/// What parse_condition() reads back to the same condition.
std::string to_text(const Condition& condition);

/// (b - a) / |a|; 0 if both are equal, an infinity if only a is zero.
double relative_change(double a, double b);

}  // namespace loratory::sim
