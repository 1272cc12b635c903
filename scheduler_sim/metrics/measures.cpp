#include "scheduler_sim/metrics/measures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/base/input_error.hpp"
#include "reference/base/text.hpp"
#include "reference/base/wording.hpp"

namespace loratory::sim {
namespace {

constexpr const char* kFlag = "--fail-if";
constexpr const char* kForms = "write 'ttft_p99>+10%', 'goodput<-2%' or 'ttft_p99>500ms'";

std::vector<Measure> all_measures() {
  std::vector<Measure> all;
  for (const char* latency : {"ttft", "tpot", "itl", "e2el", "queue"}) {
    for (const char* statistic : {"mean", "std", "p50", "p90", "p95", "p99", "pslo"}) {
      all.push_back({fmt::format("{}_{}", latency, statistic),
                     fmt::format("{}_{}_ms", statistic, latency), MeasureUnit::milliseconds});
    }
  }
  for (const char* rate : {"goodput", "throughput"}) {
    all.push_back({rate, fmt::format("request_{}", rate), MeasureUnit::per_second});
  }
  for (const char* rate : {"output_throughput", "total_token_throughput"}) {
    all.push_back({rate, rate, MeasureUnit::per_second});
  }
  for (const char* ratio : {"slo_attainment", "adapter_gpu_hit_ratio", "adapter_cpu_hit_ratio",
                            "prefix_hit_ratio_tokens", "gpu_busy_fraction"}) {
    all.push_back({ratio, ratio, MeasureUnit::fraction});
  }
  for (const char* count : {"completed", "failed", "num_preemptions", "num_drains", "adapter_loads",
                            "adapter_copies", "max_waiting", "kv_blocks"}) {
    all.push_back({count, count, MeasureUnit::count});
  }
  return all;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

[[noreturn]] void refuse(std::string_view text, std::string_view rule, std::string_view remedy) {
  throw InputError(kFlag, fmt::format("{}: {}", shown(text), rule), remedy);
}

const Measure& measure_of(std::string_view text, std::string_view name) {
  if (const Measure* measure = find_measure(name)) return *measure;
  std::vector<std::string> names;
  for (const Measure& measure : measures()) names.push_back(measure.name);
  refuse(text, fmt::format("{} is no measure", shown(name)),
         did_you_mean(name, names, "such as ttft_p99, tpot_p50, goodput or slo_attainment"));
}

// Takes the unit off `number` and says by how much to multiply what is left.
double take_unit(std::string_view& number, MeasureUnit unit) {
  const auto take = [&](std::string_view suffix) {
    if (!number.ends_with(suffix)) return false;
    number = trimmed(number.substr(0, number.size() - suffix.size()));
    return true;
  };
  if (unit == MeasureUnit::fraction) return take("%") ? 0.01 : 1;
  if (unit != MeasureUnit::milliseconds || take("ms")) return 1;
  return take("s") ? 1000 : 1;
}

double finite_number(std::string_view text, std::string_view number) {
  const auto value = to_number<double>(number);
  if (!value || !std::isfinite(*value) || *value < 0) {
    refuse(text, fmt::format("{} is not a limit", shown(number)), kForms);
  }
  return *value;
}

}  // namespace

const std::vector<Measure>& measures() {
  static const std::vector<Measure> kAll = all_measures();
  return kAll;
}

const Measure* find_measure(std::string_view name) {
  const auto found = std::ranges::find_if(
      measures(), [&](const Measure& m) { return m.name == name || m.key == name; });
  return found == measures().end() ? nullptr : &*found;
}

double relative_change(double a, double b) {
  if (a == b) return 0;
  if (a == 0) return std::copysign(std::numeric_limits<double>::infinity(), b);
  return (b - a) / std::fabs(a);
}

bool Condition::holds(double a, double b) const {
  const double value = is_change ? 100 * (b - a) : b;  // without a division, which would round
  const double bound = is_change ? limit * std::fabs(a) : limit;
  return is_above ? value > bound : value < bound;
}

Condition parse_condition(std::string_view text) {
  const size_t sign_at = text.find_first_of("<>");
  if (sign_at == std::string_view::npos) refuse(text, "has no < or >", kForms);
  Condition condition;
  condition.measure = &measure_of(text, trimmed(text.substr(0, sign_at)));
  condition.is_above = text[sign_at] == '>';
  std::string_view number = trimmed(text.substr(sign_at + 1));
  condition.is_change = number.starts_with('+') || number.starts_with('-');
  if (condition.is_change) {
    const double sign = number.front() == '-' ? -1 : 1;
    if (!number.ends_with('%')) refuse(text, "a change ends in %", kForms);
    number = trimmed(number.substr(1, number.size() - 2));
    condition.limit = sign * finite_number(text, number);
    return condition;
  }
  if (number.ends_with('%') && condition.measure->unit != MeasureUnit::fraction) {
    refuse(text, "a change begins with + or -", kForms);
  }
  const double scale = take_unit(number, condition.measure->unit);
  condition.limit = finite_number(text, number) * scale;
  if (!std::isfinite(condition.limit)) refuse(text, "the limit is too large", kForms);
  return condition;
}

std::string to_text(const Condition& condition) {
  const char sign = condition.is_above ? '>' : '<';
  if (condition.is_change) {
    return fmt::format("{}{}{:+}%", condition.measure->name, sign, condition.limit);
  }
  const char* unit = condition.measure->unit == MeasureUnit::milliseconds ? "ms" : "";
  return fmt::format("{}{}{}{}", condition.measure->name, sign, condition.limit, unit);
}

}  // namespace loratory::sim
