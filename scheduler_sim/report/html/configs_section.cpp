#include <fmt/format.h>

#include <array>
#include <cmath>

#include "reference/base/units.hpp"
#include "scheduler_sim/report/advice.hpp"
#include "scheduler_sim/report/format.hpp"
#include "scheduler_sim/report/html/markup.hpp"
#include "scheduler_sim/report/html/sections.hpp"

namespace loratory::sim::report {
namespace {

using Show = std::string (*)(double);

struct ConfigColumn {
  const char* name;
  const char* unit;
  double (*value)(const ConfigResult&);  // what the column sorts by
  Show show;
  bool shown_if_infeasible = false;
};

std::string whole(double value) { return format_count(std::llround(value)); }
std::string percent(double fraction) { return fmt::format("{:.1f}", 100 * fraction); }
std::string gib(double bytes) { return fmt::format("{:.1f}", bytes / double(kGiB)); }

std::string headroom_cell(double headroom) { return headroom < 0 ? "" : headroom_text(headroom); }

double copy_rate(const ConfigResult& c) {
  return c.duration_s > 0 ? double(c.adapter_copies) / c.duration_s : 0;
}

const auto kColumns = std::to_array<ConfigColumn>({
    {"max", "loras", [](const ConfigResult& c) { return double(c.max_loras); }, whole, true},
    {"max cpu", "loras", [](const ConfigResult& c) { return double(c.max_cpu_loras); }, whole,
     true},
    {"headroom", "x rate", [](const ConfigResult& c) { return c.headroom; }, headroom_cell},
    {"goodput", "req/s", [](const ConfigResult& c) { return c.request_goodput; }, format_number},
    {"SLO", "met %", [](const ConfigResult& c) { return c.slo_attainment; }, percent},
    {"TTFT", "p50 ms", [](const ConfigResult& c) { return c.ttft.p50_ms; }, format_number},
    {"TTFT", "p99 ms", [](const ConfigResult& c) { return c.ttft.p99_ms; }, format_number},
    {"TPOT", "p50 ms", [](const ConfigResult& c) { return c.tpot.p50_ms; }, format_number},
    {"TPOT", "p99 ms", [](const ConfigResult& c) { return c.tpot.p99_ms; }, format_number},
    {"queue", "p99 ms", [](const ConfigResult& c) { return c.queue.p99_ms; }, format_number},
    {"GPU", "hit %", [](const ConfigResult& c) { return c.adapter_gpu_hit_ratio; }, percent},
    {"CPU", "hit %", [](const ConfigResult& c) { return c.adapter_cpu_hit_ratio; }, percent},
    {"copies", "per s", copy_rate, format_number},
    {"prefix", "hit %", [](const ConfigResult& c) { return c.prefix_hit_ratio_tokens; }, percent},
    {"pre-", "empted", [](const ConfigResult& c) { return double(c.num_preemptions); }, whole},
    {"slots", "GiB", [](const ConfigResult& c) { return double(c.memory.slot_bytes); }, gib, true},
    {"host", "GiB", [](const ConfigResult& c) { return double(c.memory.host_bytes); }, gib, true},
    {"KV", "blocks", [](const ConfigResult& c) { return double(c.memory.kv_blocks); }, whole, true},
});

// The verdict follows the sizes: where the table is wider than the window, it stays in view.
constexpr size_t kVerdictAfter = 2;

std::string header() {
  std::string html = "<thead><tr>";
  for (size_t i = 0; i < kColumns.size(); ++i) {
    if (i == kVerdictAfter) html += "<th scope=\"col\"><button>verdict</button></th>";
    html += fmt::format("<th scope=\"col\"><button>{} <small>{}</small></button></th>",
                        kColumns[i].name, kColumns[i].unit);
  }
  return html + "</tr></thead>\n";
}

std::string verdict_cell(const ConfigResult& config, bool recommended) {
  const char* tone = config.feasible && config.meets_slo ? "why ok" : "why miss";
  const int order = config.meets_slo ? 2 : config.feasible ? 1 : 0;
  return fmt::format("<td class=\"{}\" data-value=\"{}\">{}{}</td>", tone, order,
                     recommended ? "&#9733; " : "",
                     config.feasible ? html_text(verdict_text(config)) : "does not fit");
}

std::string row(const ConfigResult& config, bool recommended) {
  std::string html = recommended        ? "<tr class=\"chosen\">"
                     : !config.feasible ? "<tr class=\"misfit-row\">"
                                        : "<tr>";
  for (size_t i = 0; i < kColumns.size(); ++i) {
    const ConfigColumn& column = kColumns[i];
    if (i == kVerdictAfter) html += verdict_cell(config, recommended);
    const bool shown = config.feasible || column.shown_if_infeasible;
    html += fmt::format("<td data-value=\"{}\">{}</td>", column.value(config),
                        shown ? column.show(column.value(config)) : "");
  }
  return html + "</tr>\n";
}

// The long story of the rows that do not fit, where it cannot widen the table.
std::string notes(const SizeResult& result) {
  std::string html;
  for (const ConfigResult& config : result.configs) {
    if (config.feasible) continue;
    html += fmt::format("<p class=\"note\">max_loras {}: {}</p>\n", config.max_loras,
                        html_text(config.problem));
  }
  return html;
}

struct Latency {
  const char* name;
  LatencySummary ConfigResult::*summary;
};

constexpr auto kLatencies = std::to_array<Latency>({{"TTFT", &ConfigResult::ttft},
                                                    {"TPOT", &ConfigResult::tpot},
                                                    {"ITL", &ConfigResult::itl},
                                                    {"E2EL", &ConfigResult::e2el},
                                                    {"queue", &ConfigResult::queue}});

std::string percentile_row(const ConfigResult& config, const Latency& latency) {
  const LatencySummary& s = config.*latency.summary;
  std::string html = fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td>", config.max_loras,
                                 config.max_cpu_loras, latency.name);
  for (const double value_ms :
       {s.mean_ms, s.std_ms, s.p50_ms, s.p90_ms, s.p95_ms, s.p99_ms, s.pslo_ms}) {
    html += fmt::format("<td>{}</td>", format_number(value_ms));
  }
  return html + "</tr>\n";
}

// All of them; the table above has those that decide.
std::string percentiles_table(const SizeResult& result) {
  std::string html = fmt::format(
      "<details class=\"all-percentiles\"><summary>Every percentile, ms</summary>\n"
      "<div class=\"scroll\"><table><thead><tr><th>max loras</th><th>max cpu</th><th>of</th>"
      "<th>mean</th><th>std</th><th>p50</th><th>p90</th><th>p95</th><th>p99</th>"
      "<th>SLO's {}</th></tr></thead><tbody>\n",
      format_percentile(result.slo.percentile));
  for (const ConfigResult& config : result.configs) {
    if (!config.feasible) continue;
    for (const Latency& latency : kLatencies) html += percentile_row(config, latency);
  }
  return html + "</tbody></table></div></details>\n";
}

}  // namespace

std::string configs_section(const SizeResult& result) {
  const char* heading = result.is_replay ? "The configuration" : "Configurations";
  std::string html = fmt::format("<section id=\"configurations\"><h2>{}</h2>\n", heading) +
                     (result.is_replay ? "" : "<p>Select a heading to sort.</p>\n") +
                     "<div class=\"scroll\"><table class=\"configs\">" + header() + "<tbody>\n";
  for (size_t i = 0; i < result.configs.size(); ++i) {
    html += row(result.configs[i], int32_t(i) == result.recommended);
  }
  return html + "</tbody></table></div>\n" + notes(result) + percentiles_table(result) +
         "</section>\n";
}

}  // namespace loratory::sim::report
