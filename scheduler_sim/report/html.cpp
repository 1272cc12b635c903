#include "scheduler_sim/report/html.hpp"

#include <fmt/format.h>

#include <ostream>
#include <string>
#include <string_view>

#include "scheduler_sim/report/html/assets.hpp"
#include "scheduler_sim/report/html/charts.hpp"
#include "scheduler_sim/report/html/markup.hpp"
#include "scheduler_sim/report/html/sections.hpp"

namespace loratory::sim {
namespace {

using report::Figure;

void write_figures(std::ostream& out, std::string_view id, std::string_view heading,
                   std::string_view lead, const std::vector<Figure>& figures) {
  if (figures.empty()) return;
  out << fmt::format("<section id=\"{}\"><h2>{}</h2>\n<p>{}</p>\n<div class=\"charts\">\n", id,
                     heading, lead);
  for (const Figure& figure : figures) out << report::markup(figure);
  out << "</div></section>\n";
}

std::vector<Figure> joined(std::vector<Figure> first, std::vector<Figure> second) {
  for (Figure& figure : second) first.push_back(std::move(figure));
  return first;
}

}  // namespace

void write_html(std::ostream& out, const SizeResult& result,
                std::span<const TraceAdapter> adapters) {
  out << report::page_head(report::page_title(result)) << "<body>\n<main>\n"
      << report::verdict_section(result) << report::workload_section(result);
  out << report::configs_section(result) << report::fleet_section(result);
  write_figures(
      out, "trade-off", result.is_replay ? "Memory" : "The trade-off",
      result.is_replay
          ? "Where the memory of the GPU goes."
          : "With too few slots, requests wait for adapters; with too many, the KV cache is too "
            "small.",
      joined(report::sweep_figures(result),
             joined(report::miss_ratio_figures(result), report::memory_figures(result))));
  write_figures(out, "requests", "Every request, not only percentiles",
                result.is_replay
                    ? "How the latencies of all requests are distributed."
                    : "The chosen size beside the next smaller and the next larger one.",
                report::latency_cdf_figures(result));
  write_figures(out, "over-time", "Over time", "What the slots, the queue and the KV cache did.",
                report::timeline_figures(result, adapters));
  write_figures(out, "adapters", "The adapters",
                "The stream of adapters, independent of the engine.",
                report::adapter_figures(result));
  out << report::definitions_section() << "</main>\n"
      << report::provenance_footer(result) << "<div id=\"tip\" hidden></div>\n"
      << report::data_island(result) << "<script>" << report::kPageScript
      << "</script>\n</body>\n</html>\n";
}

}  // namespace loratory::sim
