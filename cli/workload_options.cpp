#include "cli/workload_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>

#include "cli/flags.hpp"
#include "cli/read_options.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/units.hpp"
#include "scheduler_sim/workload/arrivals.hpp"

namespace loratory::cli {
namespace {

constexpr uint32_t kMostAdapters = 1'000'000;
constexpr double kMostRateScale = 1e9;

}  // namespace

bool AdapterOptions::are_given() const {
  const sim::PopularityKind kind = sim::parse_popularity(popularity).kind;
  return num_adapters != 0 || kind == sim::PopularityKind::weights ||
         kind == sim::PopularityKind::servegen;
}

std::vector<uint32_t> AdapterOptions::ranks_or_default() const {
  return ranks.empty() ? std::vector<uint32_t>{16} : ranks;
}

std::string popularity_file(const AdapterOptions& options) {
  return sim::parse_popularity(options.popularity).path;
}

void add_adapter_options(CLI::App& app, AdapterOptions& options) {
  add_number(app, "--adapters", options.num_adapters, {1, kMostAdapters}, "Number of adapters")
      ->default_str("")
      ->group("Workload");
  app.add_option("--popularity", options.popularity,
                 "How requests spread over them: uniform | zipf:A | power:A | weights:FILE | "
                 "servegen:FILE[#MODEL]")
      ->capture_default_str()
      ->group("Workload");
  add_numbers(app, "--ranks", options.ranks, {1, sim::kMaxRank},
              "Ranks, assigned to the adapters in turn: 8,16 (default: 16)")
      ->group("Workload");
}

namespace {

// Ranks that would change nothing are a mistake.
void require_ranks_apply(const sim::Trace& trace, const AdapterOptions& adapters) {
  const auto has_rank = [](const sim::TraceAdapter& adapter) { return adapter.rank > 0; };
  if (adapters.ranks.empty() || adapters.are_given() || trace.adapters.empty()) return;
  if (!std::ranges::all_of(trace.adapters, has_rank)) return;
  throw InputError("--ranks", "every adapter of the trace has a rank",
                   "leave it out, or assign other adapters with --adapters N --replace-adapters");
}

uint32_t largest_rank(const std::vector<sim::TraceAdapter>& adapters) {
  uint32_t largest = 0;
  for (const sim::TraceAdapter& adapter : adapters) largest = std::max(largest, adapter.rank);
  return largest;
}

// Of ranks that are not dealt, those of the trace up to `own` or others of a file of --popularity,
// make_engine() speaks.
void require_dealt_ranks_fit(const sim::Trace& trace, uint32_t own, const AdapterOptions& options,
                             int64_t max_lora_rank) {
  const uint32_t largest = largest_rank(trace.adapters);
  const bool is_dealt =
      largest > own && std::ranges::count(options.ranks_or_default(), largest) > 0;
  if (!is_dealt || largest <= max_lora_rank) return;
  if (options.ranks.empty()) {
    throw InputError("--max-lora-rank",
                     fmt::format("{} is below {}, the default of --ranks", max_lora_rank, largest),
                     fmt::format("give --ranks {}, or raise it", max_lora_rank));
  }
  throw InputError("--max-lora-rank",
                   fmt::format("{} is below {}, a rank of --ranks", max_lora_rank, largest),
                   "raise it, or give smaller --ranks");
}

}  // namespace

void add_workload_options(CLI::App& app, WorkloadOptions& options) {
  app.add_option("--trace", options.trace_path, "Request trace; - is stdin")
      ->required()
      ->group("Workload");
  add_read_options(app, options.read);
  add_adapter_options(app, options.adapters);
  app.add_flag("--replace-adapters", options.replace_adapters,
               "Assign adapters even if the trace has its own")
      ->group("Workload");
  add_number(app, "--seed", options.seed, {0, UINT64_MAX}, "Seed of all random numbers")
      ->group("Workload");
  add_number(app, "--rate-scale", options.rate_scale, {0, kMostRateScale},
             "Multiplies the request rate")
      ->group("Workload");
}

// A slice of a trace, or one with the times of a calendar: nothing happens for longer than it
// lasts. Counted from there, rates and their peaks would be those of the silence.
void count_from_first_arrival(sim::Trace& trace) {
  if (trace.requests.empty()) return;
  const int64_t first_ns = trace.requests.front().arrival_ns;
  const int64_t span_ns = trace.requests.back().arrival_ns - first_ns;
  if (span_ns == 0 || first_ns <= span_ns) return;
  for (sim::TraceRequest& r : trace.requests) {
    r.arrival_ns -= first_ns;
    if (r.cancel_ns != sim::kNever) r.cancel_ns -= first_ns;
  }
  trace.notes.push_back(
      fmt::format("times count from the first arrival, {} after the trace's start",
                  format_ms(double(first_ns) * 1e-6)));
}

sim::Trace read_workload_trace(const WorkloadOptions& options) {
  sim::Trace trace = read_with_progress(options.trace_path, options.read);
  count_from_first_arrival(trace);
  return trace;
}

void apply_workload(sim::Trace& trace, const WorkloadOptions& options, uint64_t seed,
                    int64_t max_lora_rank) {
  sim::scale_rate(trace, options.rate_scale);
  const AdapterOptions& adapters = options.adapters;
  const std::vector<uint32_t> ranks = adapters.ranks_or_default();
  require_ranks_apply(trace, adapters);
  const uint32_t own_rank = adapters.are_given() ? 0 : largest_rank(trace.adapters);
  if (adapters.are_given()) {
    sim::assign_adapters(trace, {sim::parse_popularity(adapters.popularity), adapters.num_adapters,
                                 ranks, seed, options.replace_adapters});
  } else if (adapters.popularity != "uniform") {
    throw InputError("--popularity", "the number of adapters is missing", "add --adapters N");
  }
  sim::deal_missing_ranks(trace, ranks);
  if (max_lora_rank > 0) require_dealt_ranks_fit(trace, own_rank, adapters, max_lora_rank);
}

sim::Trace load_workload(const WorkloadOptions& options, int64_t max_lora_rank) {
  sim::Trace trace = read_workload_trace(options);
  apply_workload(trace, options, options.seed, max_lora_rank);
  return trace;
}

std::string describe_adapters(std::span<const sim::Trace> traces, const WorkloadOptions& options) {
  const AdapterOptions& adapters = options.adapters;
  const sim::Trace& trace = traces.front();
  if (!adapters.are_given()) {
    return trace.adapters.empty()
               ? "base model only"
               : fmt::format("{} of the trace", count_text(std::ssize(trace.adapters), "adapter"));
  }
  const size_t count = adapters.num_adapters != 0 ? adapters.num_adapters : trace.adapters.size();
  std::set<uint32_t> ranks;  // a file of --popularity may have its own
  for (const sim::Trace& one : traces) {
    for (const sim::TraceAdapter& adapter : one.adapters) ranks.insert(adapter.rank);
  }
  return fmt::format("{}, {}, {} {}", count_text(int64_t(count), "adapter"), adapters.popularity,
                     ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ","));
}

}  // namespace loratory::cli
