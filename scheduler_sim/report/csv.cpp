#include "scheduler_sim/report/csv.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <iterator>
#include <ostream>

#include "reference/base/check.hpp"

namespace loratory::sim {
namespace {

struct Column {
  const char* name;
  std::string (*value)(const ConfigResult&);
};

std::string number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : ""; }
std::string number(int64_t value) { return fmt::format("{}", value); }
std::string flag(bool value) { return value ? "true" : "false"; }

#define LORATORY_LATENCY_COLUMNS(name)                                                    \
  Column{"mean_" #name "_ms", [](const ConfigResult& c) { return number(c.name.mean_ms); }}, \
      Column{"p50_" #name "_ms", [](const ConfigResult& c) { return number(c.name.p50_ms); }}, \
      Column{"p90_" #name "_ms", [](const ConfigResult& c) { return number(c.name.p90_ms); }}, \
      Column{"p99_" #name "_ms", [](const ConfigResult& c) { return number(c.name.p99_ms); }}
#define LORATORY_COLUMN(name) \
  Column { #name, [](const ConfigResult& c) { return number(c.name); } }
#define LORATORY_MEMORY_COLUMN(name) \
  Column { #name, [](const ConfigResult& c) { return number(c.memory.name); } }

const auto kColumns = std::to_array<Column>({
    {"max_loras", [](const ConfigResult& c) { return number(int64_t{c.max_loras}); }},
    {"max_cpu_loras", [](const ConfigResult& c) { return number(int64_t{c.max_cpu_loras}); }},
    {"seed", [](const ConfigResult& c) { return fmt::format("{}", c.seed); }},
    {"feasible", [](const ConfigResult& c) { return flag(c.feasible); }},
    {"meets_slo", [](const ConfigResult& c) { return flag(c.meets_slo); }},
    {"verdict", [](const ConfigResult& c) { return csv_field(c.verdict); }},
    LORATORY_COLUMN(num_requests),
    LORATORY_COLUMN(completed),
    LORATORY_COLUMN(cancelled),
    LORATORY_COLUMN(failed),
    LORATORY_COLUMN(duration_s),
    LORATORY_COLUMN(request_throughput),
    LORATORY_COLUMN(total_token_throughput),
    LORATORY_COLUMN(output_throughput),
    LORATORY_COLUMN(request_goodput),
    LORATORY_COLUMN(slo_attainment),
    LORATORY_LATENCY_COLUMNS(ttft),
    LORATORY_LATENCY_COLUMNS(tpot),
    LORATORY_LATENCY_COLUMNS(itl),
    LORATORY_LATENCY_COLUMNS(e2el),
    LORATORY_LATENCY_COLUMNS(queue),
    LORATORY_COLUMN(adapter_gpu_hit_ratio),
    LORATORY_COLUMN(adapter_cpu_hit_ratio),
    LORATORY_COLUMN(adapter_loads),
    LORATORY_COLUMN(adapter_load_bytes),
    LORATORY_COLUMN(adapter_copies),
    LORATORY_COLUMN(adapter_copy_bytes),
    LORATORY_COLUMN(prefix_hit_ratio_tokens),
    LORATORY_COLUMN(prefix_hit_ratio_blocks),
    LORATORY_COLUMN(num_preemptions),
    LORATORY_COLUMN(num_drains),
    LORATORY_COLUMN(num_steps),
    LORATORY_COLUMN(mean_batch_seqs),
    LORATORY_COLUMN(gpu_busy_fraction),
    LORATORY_COLUMN(max_waiting),
    LORATORY_MEMORY_COLUMN(hbm_bytes),
    LORATORY_MEMORY_COLUMN(weights_bytes),
    LORATORY_MEMORY_COLUMN(slot_bytes),
    LORATORY_MEMORY_COLUMN(kv_bytes),
    LORATORY_MEMORY_COLUMN(reserve_bytes),
    LORATORY_MEMORY_COLUMN(kv_blocks),
    LORATORY_MEMORY_COLUMN(block_bytes),
    LORATORY_MEMORY_COLUMN(host_bytes),
    {"event_log_hash", [](const ConfigResult& c) { return csv_field(c.event_log_hash); }},
});
#undef LORATORY_LATENCY_COLUMNS
#undef LORATORY_COLUMN
#undef LORATORY_MEMORY_COLUMN

constexpr std::array kTiers = {"base", "gpu", "cpu", "disk"};
constexpr std::array kOutcomes = {"unfinished", "completed", "cancelled", "error", "rejected"};

/// "12.345678" for a moment, "" for one that never came.
std::string moment_ms(int64_t time_ns) {
  if (time_ns < 0) return "";
  return fmt::format("{}.{:06}", time_ns / 1'000'000, time_ns % 1'000'000);
}

std::string adapter_name(const RequestRecord& request, std::span<const TraceAdapter> adapters) {
  if (request.adapter == kBaseModel) return "";
  LORATORY_ASSERT(request.adapter < adapters.size(), "a record names an adapter of its trace");
  return csv_field(adapters[request.adapter].name);
}

}  // namespace

std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) quoted.append(c == '"' ? 2 : 1, c);
  return quoted + '"';
}

void write_results_csv(std::ostream& out, std::span<const ConfigResult> configs) {
  for (const Column& column : kColumns) out << (&column == kColumns.data() ? "" : ",") << column.name;
  out << "\n";
  for (const ConfigResult& config : configs) {
    for (const Column& column : kColumns) {
      out << (&column == kColumns.data() ? "" : ",") << column.value(config);
    }
    out << "\n";
  }
}

void write_requests_csv(std::ostream& out, std::span<const RequestRecord> requests,
                        std::span<const TraceAdapter> adapters) {
  out << "request,adapter,tier_at_arrival,outcome,arrival_ms,first_scheduled_ms,first_token_ms,"
         "finish_ms,prompt_tokens,output_tokens,cached_tokens,num_preemptions\n";
  fmt::memory_buffer row;
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestRecord& r = requests[i];
    LORATORY_ASSERT(r.tier_at_arrival < kTiers.size(), "the tiers are base, gpu, cpu and disk");
    LORATORY_ASSERT(r.outcome < kOutcomes.size(), "every outcome has a name");
    row.clear();
    fmt::format_to(std::back_inserter(row), "{},{},{},{},{},{},{},{},{},{},{},{}\n", i,
                   adapter_name(r, adapters), kTiers[r.tier_at_arrival], kOutcomes[r.outcome],
                   moment_ms(r.arrival_ns), moment_ms(r.first_scheduled_ns),
                   moment_ms(r.first_token_ns), moment_ms(r.finish_ns), r.prompt_tokens,
                   r.output_tokens, r.cached_tokens, r.num_preemptions);
    out.write(row.data(), static_cast<std::streamsize>(row.size()));
  }
}

}  // namespace loratory::sim
