#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "scheduler_sim/report/advice.hpp"
#include "scheduler_sim/report/format.hpp"
#include "scheduler_sim/report/html/charts.hpp"
#include "scheduler_sim/report/html/line_chart.hpp"
#include "scheduler_sim/report/html/sweep.hpp"

namespace loratory::sim::report {
namespace {

// One curve of a chart against max_loras.
struct Measure {
  const char* label;
  int style;
  double (*value)(const ConfigResult&);
};

constexpr double kLogFromRatio = 30;  // values that differ by more are read on a log scale
constexpr double kLogSizesFromRatio = 6;

double size_of(const SizeResult& result, size_t i) { return result.configs[i].max_loras; }

std::vector<size_t> feasible_of(const SizeResult& result, std::vector<size_t> sweep) {
  std::erase_if(sweep, [&](size_t i) { return !result.configs[i].feasible; });
  return sweep;
}

// The axis, the marks and the crosses that all charts against max_loras share.
LineChart chart_of_sizes(const SizeResult& result) {
  LineChart chart;
  const std::vector<size_t> sweep = sweep_of(result);
  for (const size_t i : sweep) {
    chart.x.ticks.push_back(size_of(result, i));
    if (!result.configs[i].feasible) chart.misfits.push_back(size_of(result, i));
  }
  chart.x.title = chart.misfits.empty() ? "max_loras" : "max_loras (\u00d7 does not fit)";
  chart.x.format = format_number;
  chart.x.log = chart.x.ticks.front() > 0 &&
                chart.x.ticks.back() >= kLogSizesFromRatio * chart.x.ticks.front();
  if (result.recommended >= 0) {
    const auto recommended = size_t(result.recommended);
    chart.x_rules.push_back({size_of(result, recommended),
                             fmt::format("recommended: {}", size_of(result, recommended))});
  }
  return chart;
}

void add_measures(LineChart& chart, const SizeResult& result,
                  const std::vector<Measure>& measures) {
  const std::vector<size_t> feasible = feasible_of(result, sweep_of(result));
  for (const Measure& measure : measures) {
    Line curve{measure.label, measure.style, {}};
    for (const size_t i : feasible) {
      curve.points.push_back({size_of(result, i), measure.value(result.configs[i])});
    }
    chart.lines.push_back(std::move(curve));
  }
}

// A row for each size, for the table; and the same words as the read-out of the chart.
DataTable table_of(LineChart& chart, const SizeResult& result, const std::vector<Measure>& measures,
                   NumberFormat format) {
  DataTable table{{"max_loras"}, {}};
  for (const Measure& measure : measures) table.head.push_back(measure.label);
  for (const size_t i : sweep_of(result)) {
    const ConfigResult& config = result.configs[i];
    std::vector<std::string> row{size_label(result, i)};
    std::string tip = fmt::format("max_loras {}", row[0]);
    for (const Measure& measure : measures) {
      row.push_back(config.feasible ? format(measure.value(config)) : "does not fit");
      if (config.feasible) tip += fmt::format("\n{}  {}", measure.label, row.back());
    }
    chart.tips.push_back(
        {size_of(result, i), config.feasible ? tip : fmt::format("{}\n{}", tip, config.problem)});
    table.rows.push_back(std::move(row));
  }
  return table;
}

// Log scale when the curves span more than kLogFromRatio and all are positive.
bool wants_log(const LineChart& chart) {
  double lo = INFINITY;
  double hi = 0;
  for (const Line& l : chart.lines) {
    for (const Point& p : l.points) {
      lo = std::min(lo, p.y);
      hi = std::max(hi, p.y);
    }
  }
  return lo > 0 && hi > kLogFromRatio * lo;
}

std::string slice_note(const SizeResult& result) {
  const bool sliced = sweep_of(result).size() < result.configs.size();
  const int32_t focus = focus_of(result);
  if (!sliced || focus < 0) return "";
  return fmt::format(" At max_cpu_loras {} where tried; the table above has all.",
                     result.configs[size_t(focus)].max_cpu_loras);
}

void add_band(LineChart& chart, const SizeResult& result, const std::vector<double>& lo,
              const std::vector<double>& hi) {
  if (result.num_seeds < 2 || lo.size() != result.configs.size() || hi.size() != lo.size()) return;
  for (const size_t i : feasible_of(result, sweep_of(result))) {
    chart.band_lo.push_back({size_of(result, i), lo[i]});
    chart.band_hi.push_back({size_of(result, i), hi[i]});
  }
}

Figure goodput_figure(const SizeResult& result) {
  const std::vector<Measure> measures = {
      {"goodput", 1, [](const ConfigResult& c) { return c.request_goodput; }},
      {"completed", 3, [](const ConfigResult& c) { return c.request_throughput; }}};
  LineChart chart = chart_of_sizes(result);
  chart.y = {"requests/s", format_number};
  add_measures(chart, result, measures);
  add_band(chart, result, result.goodput_min, result.goodput_max);
  Figure figure{.id = "goodput", .title = "Goodput"};
  figure.subtitle = "Requests/s that meet every SLO; higher is better.";
  if (!chart.band_lo.empty()) {
    figure.subtitle += fmt::format(" Band: {} seeds.", result.num_seeds);
  }
  figure.subtitle += slice_note(result);
  const int32_t knee = knee_of(result);
  for (const Point& p : chart.lines[0].points) {
    if (p.x == knee) chart.notes.push_back({p, "knee"});
  }
  figure.subtitle += " Knee: the smallest size with 95 % of the best.";
  figure.description = fmt::format(
      "Goodput against max_loras. The knee, the smallest size with 95 % of the best, is {}.", knee);
  figure.table = table_of(chart, result, measures, format_number);
  figure.drawing = draw(chart);
  return figure;
}

Figure headroom_figure(const SizeResult& result) {
  const std::vector<Measure> measures = {
      {"headroom", 1, [](const ConfigResult& c) { return c.headroom < 0 ? NAN : c.headroom; }}};
  LineChart chart = chart_of_sizes(result);
  chart.y = {"times the request rate", format_number};
  add_measures(chart, result, measures);
  chart.y_rules.push_back({1, "this traffic", true});
  Figure figure{.id = "headroom", .title = "Headroom"};
  figure.subtitle =
      "The largest multiple of the request rate at which every SLO is met, with every seed; higher "
      "is better.";
  figure.description =
      "Headroom against max_loras; at 1 the size meets the SLOs with this traffic.";
  figure.table = table_of(chart, result, measures, [](double v) {
    return std::isfinite(v) ? headroom_text(v) : std::string("-");
  });
  figure.drawing = draw(chart);
  return figure;
}

Figure latency_figure(const SizeResult& result, std::string id, const std::string& name,
                      const std::string& meaning, const std::vector<Measure>& measures,
                      double limit_ms, const std::vector<double>& lo_ms = {},
                      const std::vector<double>& hi_ms = {}) {
  LineChart chart = chart_of_sizes(result);
  chart.y = {"time", tick_ms};
  add_measures(chart, result, measures);
  add_band(chart, result, lo_ms, hi_ms);
  chart.band_style = 2;
  chart.y.log = wants_log(chart);
  if (chart.y.log) chart.y.title = "time, log scale";
  if (limit_ms > 0) {
    chart.y_rules.push_back(
        {limit_ms,
         fmt::format("SLO {} {}", format_percentile(result.slo.percentile), format_ms(limit_ms)),
         true});
  }
  Figure figure{.id = std::move(id), .title = name};
  figure.subtitle = fmt::format("{}; lower is better.", meaning);
  if (!chart.band_lo.empty()) {
    figure.subtitle += fmt::format(" Band: {} over {} seeds.",
                                   format_percentile(result.slo.percentile), result.num_seeds);
  }
  figure.description = name + " at the 50th, 90th and 99th percentile against max_loras" +
                       (limit_ms > 0 ? ", with the SLO " + format_ms(limit_ms) + "." : ".");
  figure.table = table_of(chart, result, measures, format_ms);
  figure.drawing = draw(chart);
  return figure;
}

Figure ttft_figure(const SizeResult& result) {
  return latency_figure(result, "ttft", "Time to first token (TTFT)", "Arrival to first token",
                        {{"p50", 3, [](const ConfigResult& c) { return c.ttft.p50_ms; }},
                         {"p90", 1, [](const ConfigResult& c) { return c.ttft.p90_ms; }},
                         {"p99", 2, [](const ConfigResult& c) { return c.ttft.p99_ms; }}},
                        result.slo.ttft_ms, result.ttft_min_ms, result.ttft_max_ms);
}

Figure tpot_figure(const SizeResult& result) {
  return latency_figure(result, "tpot", "Time per output token (TPOT)",
                        "After the first token, mean of a request",
                        {{"p50", 3, [](const ConfigResult& c) { return c.tpot.p50_ms; }},
                         {"p90", 1, [](const ConfigResult& c) { return c.tpot.p90_ms; }},
                         {"p99", 2, [](const ConfigResult& c) { return c.tpot.p99_ms; }}},
                        result.slo.tpot_ms);
}

Figure hit_figure(const SizeResult& result) {
  const std::vector<Measure> measures = {
      {"GPU", 1, [](const ConfigResult& c) { return c.adapter_gpu_hit_ratio; }},
      {"CPU", 3, [](const ConfigResult& c) { return c.adapter_cpu_hit_ratio; }},
      {"prefix", 4, [](const ConfigResult& c) { return c.prefix_hit_ratio_tokens; }}};
  LineChart chart = chart_of_sizes(result);
  chart.y = {"hit ratio", [](double v) { return fmt::format("{:.0f} %", 100 * v); }};
  chart.y.lo = 0;
  chart.y.hi = 1;
  add_measures(chart, result, measures);
  Figure figure{.id = "hits", .title = "Hit ratios"};
  figure.subtitle =
      "Adapters found on the GPU; of the rest, on the CPU; prompt tokens found in the "
      "prefix cache. Higher is better.";
  figure.description =
      "Adapter hit ratios of the GPU and CPU tiers and prefix hit ratio of tokens "
      "against max_loras.";
  figure.table = table_of(chart, result, measures, format_percent);
  figure.drawing = draw(chart);
  return figure;
}

}  // namespace

std::vector<Figure> sweep_figures(const SizeResult& result) {
  if (feasible_of(result, sweep_of(result)).size() < 2) return {};
  std::vector<Figure> figures = {goodput_figure(result)};
  const auto known = [](const ConfigResult& c) { return c.headroom >= 0; };
  if (std::ranges::any_of(result.configs, known)) figures.push_back(headroom_figure(result));
  figures.push_back(ttft_figure(result));
  figures.push_back(tpot_figure(result));
  figures.push_back(hit_figure(result));
  return figures;
}

}  // namespace loratory::sim::report
