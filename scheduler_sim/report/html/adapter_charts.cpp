#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "scheduler_sim/report/format.hpp"
#include "scheduler_sim/report/html/charts.hpp"
#include "scheduler_sim/report/html/line_chart.hpp"
#include "scheduler_sim/report/html/sweep.hpp"
#include "scheduler_sim/report/html/thin.hpp"

namespace loratory::sim::report {
namespace {

constexpr size_t kTableRows = 24;

std::string fine_percent(double fraction) {
  return fmt::format("{} %", format_number(100 * fraction));
}

void mark_recommended(LineChart& chart, const SizeResult& result) {
  if (result.recommended < 0) return;
  const double size = result.configs[size_t(result.recommended)].max_loras;
  chart.x_rules.push_back({size, fmt::format("recommended: {}", size)});
}

Line line_of(const MissRatioCurve& curve, int style) {
  Line l{curve.policy, style, {}, false};
  for (const size_t i : kept_indices(curve.sizes.size())) {
    if (curve.sizes[i] > 0) l.points.push_back({double(curve.sizes[i]), curve.miss_ratios[i]});
  }
  return l;
}

// What the replay measured, beside what the bare stream predicts.
Line measured_line(const SizeResult& result, int style) {
  Line l{"replay", style, {}};
  for (const size_t i : sweep_of(result)) {
    const ConfigResult& c = result.configs[i];
    if (c.feasible) l.points.push_back({double(c.max_loras), 1 - c.adapter_gpu_hit_ratio});
  }
  return l;
}

std::vector<std::string> miss_row(const SizeResult& result, size_t i) {
  const auto& curves = result.miss_ratio_curves;
  std::vector<std::string> row{format_count(curves[0].sizes[i])};
  for (const MissRatioCurve& curve : curves) {
    row.push_back(i < curve.miss_ratios.size() ? format_percent(curve.miss_ratios[i]) : "-");
  }
  return row;
}

}  // namespace

std::vector<Figure> miss_ratio_figures(const SizeResult& result) {
  if (result.miss_ratio_curves.empty() || result.miss_ratio_curves[0].sizes.empty()) return {};
  LineChart chart;
  chart.x = {"slots, log scale", format_number, true};
  chart.y = {"miss ratio", whole_percent};
  chart.y.lo = 0;
  chart.y.hi = 1;
  chart.labels = Labels::upper_right;
  int style = 1;
  DataTable table{{"slots"}, {}};
  for (const MissRatioCurve& curve : result.miss_ratio_curves) {
    chart.lines.push_back(line_of(curve, style++));
    table.head.push_back(curve.policy);
  }
  chart.lines.push_back(measured_line(result, style));
  mark_recommended(chart, result);
  for (const size_t i : kept_indices(result.miss_ratio_curves[0].sizes.size(), kTableRows)) {
    table.rows.push_back(miss_row(result, i));
    std::string tip = count_text(result.miss_ratio_curves[0].sizes[i], "slot");
    for (size_t k = 1; k < table.head.size(); ++k)
      tip += fmt::format("\n{}  {}", table.head[k], table.rows.back()[k]);
    chart.tips.push_back({double(result.miss_ratio_curves[0].sizes[i]), tip});
  }
  Figure figure{.id = "miss-ratio", .title = "Miss ratio of the adapter stream"};
  figure.subtitle =
      "Each request looks up its adapter once; lower is better. lru: the adapter used longest ago "
      "goes. opt: the one needed last goes, which no policy beats. top-k: the most requested ones "
      "stay, one slot serves the rest. replay: adapters not on the GPU when requests arrived.";
  figure.description =
      "Miss ratio against the number of slots for each replacement policy, and the "
      "share of arrivals the replay did not find on the GPU.";
  figure.drawing = draw(chart);
  figure.table = std::move(table);
  return {figure};
}

namespace {

std::vector<Figure> popularity_figure(const SizeResult& result) {
  const std::vector<double>& shares = result.workload.popularity;
  if (shares.size() < 2) return {};
  LineChart chart;
  chart.x = {"adapters, the most requested first, log scale", format_number, true};
  chart.y = {"share of requests, log scale", fine_percent, true};
  Line curve{"popularity", 1, {}, false};
  DataTable table{{"place", "share of requests"}, {}};
  for (const size_t i : kept_indices(shares.size())) {
    if (shares[i] > 0) curve.points.push_back({double(i + 1), shares[i]});
  }
  for (const size_t i : kept_indices(shares.size(), kTableRows)) {
    table.rows.push_back({format_count(int64_t(i) + 1), fine_percent(shares[i])});
    chart.tips.push_back(
        {double(i + 1), fmt::format("place {}\n{}", i + 1, fine_percent(shares[i]))});
  }
  chart.lines.push_back(std::move(curve));
  Figure figure{.id = "popularity", .title = "Popularity of adapters"};
  figure.subtitle = "A straight line is a Zipf law; a flat one is uniform.";
  figure.description =
      "Share of requests against the adapter's place among the most requested, both on log scales.";
  figure.drawing = draw(chart);
  figure.table = std::move(table);
  return {figure};
}

std::vector<Figure> reuse_figure(const SizeResult& result) {
  const auto& reuse = result.workload.reuse_distance;
  if (reuse.size() < 2) return {};
  LineChart chart;
  chart.x = {"distinct adapters between two uses, log scale", format_number, true};
  chart.y = {"share of requests", whole_percent};
  chart.y.lo = 0;
  chart.y.hi = 1;
  Line curve{"reuse", 1, {}, false};
  DataTable table{{"distinct adapters", "share of requests at or below"}, {}};
  for (const size_t i : kept_indices(reuse.size())) {
    curve.points.push_back({std::max(reuse[i].first, 1.0), reuse[i].second});
  }
  for (const size_t i : kept_indices(reuse.size(), kTableRows)) {
    const double distance = std::max(reuse[i].first, 1.0);
    table.rows.push_back({format_number(reuse[i].first), format_percent(reuse[i].second)});
    chart.tips.push_back({distance, fmt::format("within {} adapters\n{}", table.rows.back()[0],
                                                table.rows.back()[1])});
  }
  chart.lines.push_back(std::move(curve));
  mark_recommended(chart, result);
  Figure figure{.id = "reuse", .title = "Reuse distance"};
  figure.subtitle = "How many other adapters come between two uses of one; further left is easier.";
  figure.description =
      "Share of requests whose adapter was used again within this many distinct adapters.";
  figure.drawing = draw(chart);
  figure.table = std::move(table);
  return {figure};
}

}  // namespace

std::vector<Figure> adapter_figures(const SizeResult& result) {
  std::vector<Figure> figures;
  for (auto make : {popularity_figure, reuse_figure}) {
    for (Figure& figure : make(result)) figures.push_back(std::move(figure));
  }
  return figures;
}

}  // namespace loratory::sim::report
