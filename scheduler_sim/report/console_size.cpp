#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <string_view>
#include <vector>

#include "reference/base/escape.hpp"
#include "reference/base/units.hpp"
#include "scheduler_sim/report/advice.hpp"
#include "scheduler_sim/report/console.hpp"
#include "scheduler_sim/report/format.hpp"
#include "scheduler_sim/report/words.hpp"
#include "scheduler_sim/sizing/headroom.hpp"

namespace loratory::sim {
namespace {

constexpr size_t kMaxWidth = 100;

constexpr const char* kBold = "\x1b[1m";
constexpr const char* kGreen = "\x1b[32m";
constexpr const char* kDim = "\x1b[2m";
constexpr const char* kReset = "\x1b[0m";

struct Column {
  const char* top;   // first line of the header
  std::string unit;  // second line
  size_t width;
  int importance;  // the smallest leaves first when the table is too wide
  bool shown_if_infeasible;
  std::string (*value)(const ConfigResult&);
};

// Whole milliseconds from 100 on, one decimal below: the digits a decision can rest on.
std::string ms(double value_ms) {
  return std::fabs(value_ms) < 99.95 ? fmt::format("{:.1f}", value_ms)
                                     : fmt::format("{:.0f}", value_ms);
}
std::string percent(double fraction) { return fmt::format("{:.1f}", 100 * fraction); }
double per_second(int64_t count, const ConfigResult& c) {
  return c.duration_s > 0 ? double(count) / c.duration_s : 0;
}

// Of the traffic's rate: "1.22x".
std::string headroom_cell(double headroom) {
  if (headroom >= rate_factor(kMostStep)) return ">15x";
  return headroom < 0.1 ? "<0.1x" : report::factor_text(headroom);
}

constexpr int kAlways = 100;
const auto kColumns = std::to_array<Column>({
    {"max_", "loras", 5, kAlways, true,
     [](const ConfigResult& c) { return fmt::format("{}", c.max_loras); }},
    {"max_cpu", "loras", 8, 9, true,
     [](const ConfigResult& c) { return fmt::format("{}", c.max_cpu_loras); }},
    {"slots", "GiB", 7, 5, true,
     [](const ConfigResult& c) {
       return fmt::format("{:.1f}", double(c.memory.slot_bytes) / double(kGiB));
     }},
    {"host", "GiB", 8, 7, true,
     [](const ConfigResult& c) {
       return fmt::format("{:.1f}", double(c.memory.host_bytes) / double(kGiB));
     }},
    {"KV", "blocks", 8, kAlways, true,
     [](const ConfigResult& c) { return format_count(c.memory.kv_blocks); }},
    {"GPU", "hit %", 7, 8, false,
     [](const ConfigResult& c) { return percent(c.adapter_gpu_hit_ratio); }},
    {"CPU", "hit %", 7, 3, false,
     [](const ConfigResult& c) { return percent(c.adapter_cpu_hit_ratio); }},
    {"copies", "/s", 7, 4, false,
     [](const ConfigResult& c) { return fmt::format("{:.1f}", per_second(c.adapter_copies, c)); }},
    {"queue", "p99 ms", 8, 2, false, [](const ConfigResult& c) { return ms(c.queue.p99_ms); }},
    {"TTFT", "p50 ms", 8, 6, false, [](const ConfigResult& c) { return ms(c.ttft.p50_ms); }},
    {"TTFT", "p90 ms", 8, 1, false, [](const ConfigResult& c) { return ms(c.ttft.p90_ms); }},
    {"TTFT", "p99 ms", 8, kAlways, false, [](const ConfigResult& c) { return ms(c.ttft.p99_ms); }},
    {"TPOT", "p50 ms", 7, 5, false, [](const ConfigResult& c) { return ms(c.tpot.p50_ms); }},
    {"TPOT", "p99 ms", 7, kAlways, false, [](const ConfigResult& c) { return ms(c.tpot.p99_ms); }},
    {"goodput", "req/s", 8, kAlways, false,
     [](const ConfigResult& c) { return fmt::format("{:.2f}", c.request_goodput); }},
    {"head-", "room", 7, kAlways, false,
     [](const ConfigResult& c) { return headroom_cell(c.headroom); }},
});

// What does not fit is told under the table, where there is room.
std::string verdict_cell(const ConfigResult& config) {
  return config.feasible ? report::verdict_text(config) : "does not fit";
}

size_t verdict_width(const SizeResult& result) {
  size_t width = std::string_view("verdict").size();
  for (const ConfigResult& c : result.configs) width = std::max(width, verdict_cell(c).size());
  return width;
}

// The percentile that the verdicts go by has its columns beside the others, which may leave then.
void add_slo_columns(std::vector<Column>& columns, double percentile) {
  if (percentile == 99) return;
  const std::string unit = report::format_percentile(percentile) + " ms";
  std::erase_if(columns, [&](const Column& column) {
    return column.unit == unit && std::string_view(column.top) != "queue";
  });
  const auto add = [&](Column slo) {
    const auto p99 = std::ranges::find_if(columns, [&](const Column& column) {
      return std::string_view(column.top) == slo.top && column.unit == "p99 ms";
    });
    p99->importance = slo.importance - 1;
    columns.insert(percentile < 99 ? p99 : p99 + 1, std::move(slo));
  };
  add({"TTFT", unit, 10, kAlways, false, [](const ConfigResult& c) { return ms(c.ttft.pslo_ms); }});
  add({"TPOT", unit, 9, kAlways, false, [](const ConfigResult& c) { return ms(c.tpot.pslo_ms); }});
}

// The columns that fit beside the mark and the verdict, without those that say nothing.
std::vector<Column> choose_columns(const SizeResult& result) {
  std::vector<Column> columns(kColumns.begin(), kColumns.end());
  if (!report::host_sizes_differ(result.configs)) columns.erase(columns.begin() + 1);
  const auto known = [](const ConfigResult& c) { return c.headroom >= 0; };
  if (std::ranges::none_of(result.configs, known)) columns.pop_back();
  add_slo_columns(columns, result.slo.percentile);
  const auto total = [&] {
    size_t width = 2 + 2 + verdict_width(result);
    for (const Column& column : columns) width += column.width;
    return width;
  };
  while (total() > kMaxWidth) {
    const auto least = std::ranges::min_element(columns, {}, &Column::importance);
    if (least->importance == kAlways) break;
    columns.erase(least);
  }
  return columns;
}

std::string header(const std::vector<Column>& columns) {
  std::string top = "  ";
  std::string unit = "  ";
  for (const Column& column : columns) {
    top += fmt::format("{:>{}}", column.top, column.width);
    unit += fmt::format("{:>{}}", column.unit, column.width);
  }
  return top + "\n" + unit + "  verdict\n";
}

std::string row(const ConfigResult& config, bool recommended, const std::vector<Column>& columns) {
  std::string line = recommended ? "> " : "  ";
  for (const Column& column : columns) {
    const bool shown = config.feasible || column.shown_if_infeasible;
    line += fmt::format("{:>{}}", shown ? column.value(config) : "", column.width);
  }
  return line + "  " + verdict_cell(config);
}

std::string table(const SizeResult& result, bool colour) {
  const std::vector<Column> columns = choose_columns(result);
  std::string text = header(columns);
  const std::string rule(kMaxWidth, '-');
  text += rule + "\n";
  for (size_t i = 0; i < result.configs.size(); ++i) {
    const ConfigResult& config = result.configs[i];
    const bool recommended = int32_t(i) == result.recommended;
    const char* style = recommended ? kGreen : config.feasible ? "" : kDim;
    const std::string line = row(config, recommended, columns);
    text += colour && *style != 0 ? style + line + kReset : line;
    text += "\n";
  }
  return text + rule + "\n";
}

// "why   text ...", continued under the text.
std::string labelled(std::string_view label, std::string_view value) {
  const std::string shown = printable(value);
  std::string_view text = shown;
  constexpr size_t kIndent = 10;
  std::string out = fmt::format("{:<{}}", label, kIndent);
  size_t column = kIndent;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (column > kIndent && column + 1 + end > kMaxWidth) {
      out += "\n" + std::string(kIndent, ' ');
      column = kIndent;
    }
    if (column > kIndent) {
      out += ' ';
      ++column;
    }
    out += text.substr(0, end);
    column += end;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out + "\n";
}

std::string workload_box(const SizeResult& result) {
  std::string text;
  for (const report::Fact& fact : report::workload_facts(result)) {
    text += labelled(fact.label, fact.value);
  }
  if (!result.configs.empty() && !report::host_sizes_differ(result.configs)) {
    text += labelled("host", fmt::format("max_cpu_loras {}", result.configs[0].max_cpu_loras));
  }
  return text;
}

// "mean 91.0 ms, p50 63.9 ms, p90 202 ms, p95 298 ms, p99 498 ms".
std::string percentiles(const LatencySummary& latency, double slo_percentile) {
  std::string text =
      fmt::format("mean {}, p50 {}, p90 {}, p95 {}, p99 {}", format_ms(latency.mean_ms),
                  format_ms(latency.p50_ms), format_ms(latency.p90_ms), format_ms(latency.p95_ms),
                  format_ms(latency.p99_ms));
  if (report::is_own_percentile(slo_percentile)) {
    text += fmt::format(", {} {}", report::format_percentile(slo_percentile),
                        format_ms(latency.pslo_ms));
  }
  return text;
}

std::string verdict(const SizeResult& result, bool colour) {
  std::string set = report::headline(result);
  if (colour) set = kBold + set + kReset;
  std::string text = set + "\n";
  const auto say = [&](std::string_view label, const std::string& words) {
    if (!words.empty()) text += labelled(label, words);
  };
  say("why", report::reason(result));
  say("next", report::next_limit(result));
  if (result.recommended >= 0) {
    const ConfigResult& config = result.configs[size_t(result.recommended)];
    say("TTFT", percentiles(config.ttft, result.slo.percentile));
    say("TPOT", percentiles(config.tpot, result.slo.percentile));
  }
  say("bounds", report::yardstick_sentence(result));
  say("adapters", report::about_adapters(result));
  say("trust", report::caveat(result));
  return text;
}

// The first size that does not fit says it for those above.
std::string misfit(const SizeResult& result) {
  for (const ConfigResult& c : result.configs) {
    if (c.feasible) continue;
    return labelled("memory", fmt::format("{}: {}", count_text(c.max_loras, "slot"), c.problem));
  }
  return "";
}

}  // namespace

std::string size_console(const SizeResult& result, bool colour) {
  return workload_box(result) + "\n" + table(result, colour) + misfit(result) + "\n" +
         verdict(result, colour);
}

}  // namespace loratory::sim
