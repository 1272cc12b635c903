#include "scheduler_sim/report/fleet_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "scheduler_sim/report/format.hpp"
#include "scheduler_sim/report/words.hpp"

namespace loratory::sim::report {
namespace {

constexpr size_t kMostRows = 12;

using Value = std::function<double(const ReplicaResult&)>;
struct Column {
  std::string name;
  int num_decimals;
  Value value;
};

std::vector<Column> replica_columns(const ConfigResult& config, const Slo& slo) {
  const std::string tail = format_percentile(slo.percentile);
  const double duration_s = std::max(1e-9, config.duration_s);
  return {
      {"requests", 0, [](const ReplicaResult& r) { return double(r.num_requests); }},
      {"adapters", 0, [](const ReplicaResult& r) { return double(r.num_adapters); }},
      {"busy %", 1, [=](const ReplicaResult& r) { return 100 * r.gpu_busy_s / duration_s; }},
      {"queue", 0, [](const ReplicaResult& r) { return double(r.max_waiting); }},
      {"GPU hit %", 1, [](const ReplicaResult& r) { return 100 * r.adapter_gpu_hit_ratio; }},
      {"copies", 0, [](const ReplicaResult& r) { return double(r.adapter_copies); }},
      {"prefix hit %", 1, [](const ReplicaResult& r) { return 100 * r.prefix_hit_ratio_tokens; }},
      {"TTFT " + tail + " ms", 0, [](const ReplicaResult& r) { return r.slo_ttft_ms; }},
      {"TPOT " + tail + " ms", 1, [](const ReplicaResult& r) { return r.slo_tpot_ms; }}};
}

std::string text_of(double value, const Column& column) {
  return column.num_decimals == 0 ? format_count(std::llround(value))
                                  : fmt::format("{:.{}f}", value, column.num_decimals);
}

// The value of rank `share` of the replicas' values, from 0 (lowest) to 1 (highest).
double order_statistic(const std::vector<ReplicaResult>& replicas, const Value& value,
                       double share) {
  std::vector<double> values;
  for (const ReplicaResult& replica : replicas) values.push_back(value(replica));
  std::ranges::sort(values);
  return values[size_t(share * double(values.size() - 1))];
}

double busiest_to_mean(const FleetSummary& fleet) {
  double most = 0, sum = 0;
  for (const ReplicaResult& replica : fleet.replicas) {
    most = std::max(most, replica.gpu_busy_s);
    sum += replica.gpu_busy_s;
  }
  return sum > 0 ? most * double(fleet.replicas.size()) / sum : 1;
}

}  // namespace

bool shows_fleet(const SizeResult& result) {
  return std::ranges::any_of(result.configs, [](const ConfigResult& c) {
    return !c.fleet.router.empty() || c.fleet.usd_per_million_tokens > 0;
  });
}

DataTable fleet_cost_table(const std::vector<ConfigResult>& configs) {
  const bool shows_host = host_sizes_differ(configs);
  DataTable table;
  table.head = {"max_loras",    "replicas",         "GPUs",         "goodput req/s",
                "busiest/mean", "GPU-hours/M tok.", "USD/M tokens", "meets SLO"};
  if (shows_host) table.head.insert(table.head.begin() + 1, "max_cpu_loras");
  for (const ConfigResult& c : configs) {
    if (!c.feasible) continue;
    const FleetSummary& fleet = c.fleet;
    table.rows.push_back(
        {fmt::format("{}", c.max_loras), fmt::format("{}", fleet.num_replicas),
         fmt::format("{}", fleet.num_gpus), fmt::format("{:.2f}", c.request_goodput),
         fmt::format("{:.2f}", busiest_to_mean(fleet)),
         fmt::format("{:.3f}", fleet.gpu_hours_per_million_tokens),
         fleet.usd_per_million_tokens > 0 ? fmt::format("{:.3f}", fleet.usd_per_million_tokens)
                                          : "-",
         c.meets_slo ? "yes" : "no"});
    std::vector<std::string>& row = table.rows.back();
    if (shows_host) row.insert(row.begin() + 1, fmt::format("{}", c.max_cpu_loras));
  }
  return table;
}

DataTable replica_table(const ConfigResult& config, const Slo& slo) {
  const std::vector<Column> columns = replica_columns(config, slo);
  const std::vector<ReplicaResult>& replicas = config.fleet.replicas;
  DataTable table;
  table.head = {"replica"};
  for (const Column& column : columns) table.head.push_back(column.name);
  const auto add_row = [&](std::string name, const auto& value_of) {
    table.rows.push_back({std::move(name)});
    for (const Column& c : columns) table.rows.back().push_back(text_of(value_of(c.value), c));
  };
  if (replicas.size() <= kMostRows) {
    for (size_t i = 0; i < replicas.size(); ++i) {
      add_row(fmt::format("{}", i), [&](const Value& value) { return value(replicas[i]); });
    }
    return table;
  }
  for (const auto& [name, share] : {std::pair("lowest", 0.0), {"median", 0.5}, {"highest", 1.0}}) {
    const double at = share;
    add_row(name, [&](const Value& value) { return order_statistic(replicas, value, at); });
  }
  return table;
}

const ConfigResult* shown_fleet(const SizeResult& result) {
  if (result.recommended >= 0) return &result.configs[size_t(result.recommended)];
  const auto it = std::ranges::find_if(
      result.configs, [](const ConfigResult& c) { return !c.fleet.replicas.empty(); });
  return it == result.configs.end() ? nullptr : &*it;
}

}  // namespace loratory::sim::report
