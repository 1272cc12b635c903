#include <fmt/format.h>

#include <algorithm>

#include "scheduler_sim/report/console.hpp"
#include "scheduler_sim/report/fleet_tables.hpp"

namespace loratory::sim {
namespace {

// Columns as wide as their widest cell, two spaces apart, to the right.
std::string text_of(const report::DataTable& table) {
  std::vector<size_t> widths;
  for (const std::string& cell : table.head) widths.push_back(cell.size());
  for (const auto& row : table.rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  const auto add = [&](const std::vector<std::string>& row) {
    for (size_t i = 0; i < row.size(); ++i) text += fmt::format("{:>{}}", row[i], widths[i] + 1);
    text += '\n';
  };
  add(table.head);
  for (const auto& row : table.rows) add(row);
  return text;
}

}  // namespace

std::string fleet_console(const SizeResult& result) {
  if (!report::shows_fleet(result)) return {};
  std::string text;
  if (!result.fleets.empty()) {
    text += "\nFewest replicas for each max_loras\n";
    text += text_of(report::fleet_cost_table(result.fleets));
  }
  text += "\nFleet and cost\n" + text_of(report::fleet_cost_table(result.configs));
  const ConfigResult* shown = report::shown_fleet(result);
  if (shown == nullptr || shown->fleet.replicas.empty()) return text;
  text += fmt::format("\nReplicas behind the router {}, max_loras {}\n", shown->fleet.router,
                      shown->max_loras);
  return text + text_of(report::replica_table(*shown, result.slo));
}

}  // namespace loratory::sim
