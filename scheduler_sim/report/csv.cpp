#include "scheduler_sim/report/csv.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <concepts>
#include <iterator>
#include <ostream>
#include <string>
#include <string_view>

#include "reference/base/check.hpp"
#include "reference/base/escape.hpp"
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
class CsvRow {
 public:
  explicit CsvRow(std::ostream& out) : out_(out) {}
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

std::string ttft_ms(const RequestRecord& r) {
  return r.first_token_ns < 0 ? "" : moment_ms(r.first_token_ns - r.arrival_ns);
}

std::string tpot_ms(const RequestRecord& r) {
  if (r.outcome != RequestOutcome::completed || r.output_tokens < 2) return "";
  return fmt::format("{:.6f}",
                     double(r.finish_ns - r.first_token_ns) / 1e6 / (r.output_tokens - 1));
}

std::string number_unless_0(uint32_t value) { return value == 0 ? "" : fmt::format("{}", value); }

// "name,rank", both empty for the base model.
std::string adapter_fields(const RequestRecord& r, const Trace& trace) {
  if (r.adapter == kBaseModel) return ",";
  LORATORY_ASSERT(r.adapter < trace.adapters.size(), "a record names an adapter of its trace");
  const TraceAdapter& adapter = trace.adapters[r.adapter];
  return fmt::format("{},{}", csv_field(adapter.name), number_unless_0(adapter.rank));
}

}  // namespace

void write_results_csv(std::ostream& out, std::span<const ConfigResult> configs,
                       std::string_view engine) {
  CsvRow header(out);
  report::visit_fields(ConfigResult{}, [&](const auto& name, const auto&) { header.add(name); });
  header.add("engine");
  header.end();
  for (const ConfigResult& config : configs) {
    CsvRow row(out);
    report::visit_fields(config, [&](const auto&, const auto& value) { row.add(field(value)); });
    row.add(csv_field(engine));
    row.end();
  }
}

void write_requests_csv(std::ostream& out, std::span<const RequestRecord> requests,
                        const Trace& trace) {
  out << "request,id,adapter,rank,priority,session,tier_at_arrival,outcome,arrival_ms,"
         "first_scheduled_ms,first_token_ms,finish_ms,ttft_ms,tpot_ms,prompt_tokens,output_tokens,"
         "cached_tokens,num_preemptions\n";
  LORATORY_ASSERT(requests.size() <= trace.requests.size(), "records are of requests of the trace");
  fmt::memory_buffer row;
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestRecord& r = requests[i];
    const TraceRequest& request = trace.requests[i];
    row.clear();
    fmt::format_to(std::back_inserter(row), "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n",
                   i, csv_field(trace.id_of(i)), adapter_fields(r, trace), request.priority,
                   number_unless_0(request.session), kTiers[size_t(r.tier_at_arrival)],
                   kOutcomes[size_t(r.outcome)], moment_ms(r.arrival_ns),
                   moment_ms(r.first_scheduled_ns), moment_ms(r.first_token_ns),
                   moment_ms(r.finish_ns), ttft_ms(r), tpot_ms(r), r.prompt_tokens, r.output_tokens,
                   r.cached_tokens, r.num_preemptions);
    out.write(row.data(), static_cast<std::streamsize>(row.size()));
  }
}

}  // namespace loratory::sim
