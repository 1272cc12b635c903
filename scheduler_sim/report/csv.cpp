#include "scheduler_sim/report/csv.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <concepts>
#include <iterator>
#include <ostream>

#include "reference/base/check.hpp"
#include "scheduler_sim/report/config_fields.hpp"

namespace loratory::sim {
namespace {

std::string field(bool value) { return value ? "true" : "false"; }
std::string field(double value) { return std::isfinite(value) ? fmt::format("{}", value) : ""; }
std::string field(const std::string& value) { return csv_field(value); }
template <std::integral Integer>
std::string field(Integer value) {
  return fmt::format("{}", value);
}

// Writes fields of one row with the commas between them.
class Row {
 public:
  explicit Row(std::ostream& out) : out_(out) {}
  void add(std::string_view field) {
    out_ << (first_ ? "" : ",") << field;
    first_ = false;
  }
  void end() { out_ << '\n'; }

 private:
  std::ostream& out_;
  bool first_ = true;
};

constexpr std::array kTiers = {"base", "gpu", "cpu", "disk"};
constexpr std::array kOutcomes = {"unfinished", "completed", "cancelled", "error", "rejected"};

// "12.345678" for a moment, "" for one that never came.
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
  Row header(out);
  report::visit_fields(ConfigResult{}, [&](const auto& name, const auto&) { header.add(name); });
  header.end();
  for (const ConfigResult& config : configs) {
    Row row(out);
    report::visit_fields(config, [&](const auto&, const auto& value) { row.add(field(value)); });
    row.end();
  }
}

void write_requests_csv(std::ostream& out, std::span<const RequestRecord> requests,
                        std::span<const TraceAdapter> adapters) {
  out << "request,adapter,tier_at_arrival,outcome,arrival_ms,first_scheduled_ms,first_token_ms,"
         "finish_ms,prompt_tokens,output_tokens,cached_tokens,num_preemptions\n";
  fmt::memory_buffer row;
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestRecord& r = requests[i];
    row.clear();
    fmt::format_to(std::back_inserter(row), "{},{},{},{},{},{},{},{},{},{},{},{}\n", i,
                   adapter_name(r, adapters), kTiers[size_t(r.tier_at_arrival)],
                   kOutcomes[size_t(r.outcome)], moment_ms(r.arrival_ns),
                   moment_ms(r.first_scheduled_ns), moment_ms(r.first_token_ns),
                   moment_ms(r.finish_ns), r.prompt_tokens, r.output_tokens, r.cached_tokens,
                   r.num_preemptions);
    out.write(row.data(), static_cast<std::streamsize>(row.size()));
  }
}

}  // namespace loratory::sim
