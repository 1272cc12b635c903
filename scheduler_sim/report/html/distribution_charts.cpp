#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "scheduler_sim/report/format.hpp"
#include "scheduler_sim/report/html/charts.hpp"
#include "scheduler_sim/report/html/line_chart.hpp"
#include "scheduler_sim/report/html/sweep.hpp"

namespace loratory::sim::report {
namespace {

using Quantiles = std::vector<double> ConfigResult::*;

constexpr double kSmallestMs = 0.01;  // a log axis has no zero
constexpr std::array<size_t, 9> kTabulated = {0, 10, 25, 50, 75, 90, 95, 99, 100};

// Quantile i of n+1 lies at share i/n.
Line curve_of(const SizeResult& result, size_t i, Quantiles quantiles, int style) {
  const std::vector<double>& values = result.configs[i].*quantiles;
  Line curve{size_label(result, i), style, {}, false};
  for (size_t q = 0; q < values.size(); ++q) {
    curve.points.push_back(
        {std::max(values[q], kSmallestMs), double(q) / double(values.size() - 1)});
  }
  return curve;
}

// The focus is drawn in the same style in every chart, its neighbours below and above around it.
int style_of(const SizeResult& result, size_t i) {
  const auto focus = size_t(focus_of(result));
  if (i == focus) return 1;
  return result.configs[i].max_loras < result.configs[focus].max_loras ? 2 : 3;
}

DataTable table_of(const SizeResult& result, const std::vector<size_t>& shown,
                   Quantiles quantiles) {
  DataTable table{{"percentile"}, {}};
  for (const size_t i : shown)
    table.head.push_back(fmt::format("max_loras {}", size_label(result, i)));
  for (const size_t percentile : kTabulated) {
    std::vector<std::string> row{fmt::format("p{}", percentile)};
    for (const size_t i : shown) {
      const std::vector<double>& values = result.configs[i].*quantiles;
      row.push_back(format_ms(values[percentile * (values.size() - 1) / 100]));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::vector<Figure> cdf_figure(const SizeResult& result, const std::string& id,
                               const std::string& name, Quantiles quantiles, double limit_ms) {
  std::vector<size_t> shown = neighbours_of_focus(result);
  std::erase_if(shown, [&](size_t i) { return (result.configs[i].*quantiles).size() < 2; });
  if (shown.empty()) return {};
  LineChart chart;
  chart.x = {fmt::format("{}, log scale", name), tick_ms, true};
  chart.y = {"share of requests", whole_percent};
  chart.y.lo = 0;
  chart.y.hi = 1;
  chart.labels = Labels::lower_right;
  for (const size_t i : shown) {
    chart.lines.push_back(curve_of(result, i, quantiles, style_of(result, i)));
  }
  if (limit_ms > 0)
    chart.x_rules.push_back({limit_ms, fmt::format("SLO {}", format_ms(limit_ms)), true});
  Figure figure{.id = fmt::format("{}-cdf", id), .title = fmt::format("{} of all requests", name)};
  figure.subtitle = "Share of requests at or below; further left is better.";
  figure.description =
      result.is_replay
          ? fmt::format("Distribution of {}.", name)
          : fmt::format("Distribution of {} for the chosen max_loras and its neighbours.", name);
  figure.drawing = draw(chart);
  figure.table = table_of(result, shown, quantiles);
  return {figure};
}

}  // namespace

std::vector<Figure> latency_cdf_figures(const SizeResult& result) {
  auto figures = cdf_figure(result, "ttft", "TTFT", &ConfigResult::ttft_cdf_ms, result.slo.ttft_ms);
  for (Figure& figure :
       cdf_figure(result, "tpot", "TPOT", &ConfigResult::tpot_cdf_ms, result.slo.tpot_ms)) {
    figures.push_back(std::move(figure));
  }
  return figures;
}

}  // namespace loratory::sim::report
