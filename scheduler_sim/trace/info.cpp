#include "scheduler_sim/trace/info.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "reference/base/escape.hpp"

namespace loratory::sim {
namespace {

constexpr size_t kMaxAdaptersShown = 10;

// 1234567 -> "1,234,567".
std::string grouped(uint64_t value) {
  if (value < 1000) return std::to_string(value);
  return fmt::format("{},{:03}", grouped(value / 1000), value % 1000);
}

class Table {
 public:
  void line(std::string_view label, const std::string& value) {
    fmt::format_to(std::back_inserter(text_), "{:<16}{}\n", label, printable(value));
  }
  template <typename... Args>
  void append(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

void append_arrivals(Table& table, const TraceSummary& summary) {
  table.line("requests", grouped(summary.num_requests));
  table.line("span", fmt::format("{:.1f} s", summary.span_s));
  table.line("rate", fmt::format("{:.3f} requests/s", summary.request_rate));
  table.line("inter-arrival",
             fmt::format("mean {:.3f} s, CV {:.2f}, {} distinct arrival times", summary.gap_mean_s,
                         summary.gap_cv, grouped(summary.num_arrival_times)));
}

void append_tokens(Table& table, const TraceSummary& summary) {
  table.append("\n{:<8}{:>11}{:>11}{:>11}{:>11}{:>11}{:>11}{:>11}\n", "tokens", "mean", "p50",
               "p90", "p95", "p99", "max", "min");
  const auto row = [&](const char* label, const TokenStatistics& tokens) {
    table.append("{:<8}{:>11.1f}{:>11.1f}{:>11.1f}{:>11.1f}{:>11.1f}{:>11}{:>11}\n", label,
                 tokens.mean, tokens.p50, tokens.p90, tokens.p95, tokens.p99, tokens.max,
                 tokens.min);
  };
  row("prompt", summary.prompt);
  row("output", summary.output);
}

void append_adapters(Table& table, const TraceSummary& summary) {
  if (summary.adapters.empty()) {
    table.append("\nadapters        none: every request is for the base model\n");
    return;
  }
  table.append("\n{:<40}{:>8}{:>12}{:>10}\n",
               fmt::format("adapters ({})", grouped(summary.adapters.size())), "rank", "requests",
               "share");
  const auto row = [&](std::string_view name, const std::string& rank, uint64_t num_requests) {
    table.append("{:<40}{:>8}{:>12}{:>10.4f}\n", name, rank, num_requests,
                 double(num_requests) / double(summary.num_requests));
  };
  const size_t num_shown = std::min(summary.adapters.size(), kMaxAdaptersShown);
  for (size_t i = 0; i < num_shown; ++i) {
    const AdapterShare& adapter = summary.adapters[i];
    row(cut(printable(adapter.name), 38), adapter.rank == 0 ? "-" : std::to_string(adapter.rank),
        adapter.num_requests);
  }
  uint64_t num_others = 0;
  for (size_t i = num_shown; i < summary.adapters.size(); ++i) {
    num_others += summary.adapters[i].num_requests;
  }
  if (num_others > 0) {
    row(fmt::format("({} others)", summary.adapters.size() - num_shown), "", num_others);
  }
  if (summary.num_base_requests > 0) row("(base model)", "", summary.num_base_requests);
}

void append_reuse(Table& table, std::span<const PrefixReuse> reuse) {
  if (reuse.empty()) return;
  table.append("\nprefix reuse of an ideal cache, LRU over blocks, one request after the other\n");
  table.append("{:>16}{:>14}{:>14}\n", "capacity", "hit blocks", "hit tokens");
  for (const PrefixReuse& point : reuse) {
    table.append("{:>16}{:>14.4f}{:>14.4f}\n",
                 point.capacity_blocks == kUnboundedBlocks ? "inf" : grouped(point.capacity_blocks),
                 point.block_ratio(), point.token_ratio());
  }
}

using Json = nlohmann::ordered_json;

Json tokens_json(const TokenStatistics& tokens) {
  return {{"mean", tokens.mean}, {"p50", tokens.p50}, {"p90", tokens.p90}, {"p95", tokens.p95},
          {"p99", tokens.p99},   {"max", tokens.max}, {"min", tokens.min}};
}

Json adapters_json(const TraceSummary& summary) {
  Json adapters = Json::array();
  for (const AdapterShare& adapter : summary.adapters) {
    adapters.push_back({{"name", adapter.name},
                        {"rank", adapter.rank == 0 ? Json() : Json(adapter.rank)},
                        {"num_requests", adapter.num_requests}});
  }
  return adapters;
}

Json reuse_json(std::span<const PrefixReuse> reuse) {
  Json points = Json::array();
  for (const PrefixReuse& point : reuse) {
    const bool is_bounded = point.capacity_blocks != kUnboundedBlocks;
    points.push_back({{"capacity_blocks", is_bounded ? Json(point.capacity_blocks) : Json()},
                      {"hit_ratio_blocks", point.block_ratio()},
                      {"hit_ratio_tokens", point.token_ratio()}});
  }
  return points;
}

}  // namespace

std::string info_table(const Trace& trace, const TraceSummary& summary,
                       std::span<const PrefixReuse> reuse) {
  Table table;
  table.line("trace", trace.source);
  table.line("format", trace.format);
  table.line("checksum", trace.checksum);
  if (trace.num_rows_skipped > 0) table.line("rows skipped", grouped(trace.num_rows_skipped));
  for (const std::string& note : trace.notes) table.line("note", note);
  append_arrivals(table, summary);
  if (summary.num_sessions > 0) table.line("sessions", grouped(summary.num_sessions));
  if (summary.num_cancelled > 0) table.line("cancelled", grouped(summary.num_cancelled));
  if (trace.block_tokens > 0) {
    table.line("prefix blocks",
               fmt::format("{} of {} tokens, {} distinct", grouped(summary.num_blocks),
                           trace.block_tokens, grouped(summary.num_distinct_blocks)));
  }
  append_tokens(table, summary);
  append_adapters(table, summary);
  append_reuse(table, reuse);
  return table.take();
}

std::string info_json(const Trace& trace, const TraceSummary& summary,
                      std::span<const PrefixReuse> reuse) {
  const Json json = {{"trace", trace.source},
                     {"format", trace.format},
                     {"checksum", trace.checksum},
                     {"num_rows_skipped", trace.num_rows_skipped},
                     {"notes", trace.notes},
                     {"num_requests", summary.num_requests},
                     {"span_s", summary.span_s},
                     {"request_rate", summary.request_rate},
                     {"gap_mean_s", summary.gap_mean_s},
                     {"gap_cv", summary.gap_cv},
                     {"num_arrival_times", summary.num_arrival_times},
                     {"num_sessions", summary.num_sessions},
                     {"num_cancelled", summary.num_cancelled},
                     {"prompt_tokens", tokens_json(summary.prompt)},
                     {"output_tokens", tokens_json(summary.output)},
                     {"num_base_requests", summary.num_base_requests},
                     {"adapters", adapters_json(summary)},
                     {"block_tokens", trace.block_tokens},
                     {"num_blocks", summary.num_blocks},
                     {"num_distinct_blocks", summary.num_distinct_blocks},
                     {"prefix_reuse", reuse_json(reuse)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace loratory::sim
