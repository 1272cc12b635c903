#include <fmt/format.h>

#include "scheduler_sim/report/fleet_tables.hpp"
#include "scheduler_sim/report/html/sections.hpp"

namespace loratory::sim::report {

std::string fleet_section(const SizeResult& result) {
  if (!shows_fleet(result)) return {};
  std::string html = "<section id=\"fleet\"><h2>Fleet and cost</h2>\n";
  html +=
      "<p>GPUs are replicas x tp. A million tokens are prompt and output tokens of completed "
      "requests; busiest/mean compares the time in steps of the busiest replica with the mean."
      "</p>\n";
  if (!result.fleets.empty()) {
    html += "<h3>Fewest replicas for each max_loras</h3>\n" +
            markup(fleet_cost_table(result.fleets)) + "<h3>The sizes of the sweep</h3>\n";
  }
  html += markup(fleet_cost_table(result.configs));
  const ConfigResult* shown = shown_fleet(result);
  if (shown != nullptr && !shown->fleet.replicas.empty()) {
    html += fmt::format("<h3>Replicas behind the router {}, max_loras {}</h3>\n",
                        html_text(shown->fleet.router), shown->max_loras);
    html += markup(replica_table(*shown, result.slo));
  }
  return html + "</section>\n";
}

}  // namespace loratory::sim::report
