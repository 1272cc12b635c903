#include "scheduler_sim/report/serving_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "reference/base/escape.hpp"
#include "reference/base/units.hpp"
#include "scheduler_sim/metrics/quantiles.hpp"
#include "scheduler_sim/report/format.hpp"

namespace loratory::sim {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMostProblems = 8;
constexpr size_t kNameWidth = 24;

double ms(int64_t from_ns, int64_t to_ns) { return double(to_ns - from_ns) / kNsPerMs; }

const char* word_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::abort:
      return "abort";
    case FinishReason::error:
      return "error";
  }
  return "?";
}

// Each request of the file with what became of it, in order.
template <typename Use>
void for_each_request(const ServingReport& report, Use use) {
  size_t index = 0;
  for (const RequestLine& line : report.file.lines) {
    if (const auto* request = std::get_if<ServingRequest>(&line.what)) {
      use(line, *request, report.served.requests[index], index);
      ++index;
    }
  }
}

// --- lines of JSON ----------------------------------------------------------------------------

ordered_json timings_of(const ServedRequest& served) {
  ordered_json out;
  out["arrival_s"] = double(served.arrival_ns) / kNsPerSecond;
  if (served.first_scheduled_ns >= 0) {
    out["queue_ms"] = ms(served.arrival_ns, served.first_scheduled_ns);
  }
  out["e2el_ms"] = ms(served.arrival_ns, served.finish_ns);
  if (served.token_ns.empty()) return out;
  out["ttft_ms"] = ms(served.arrival_ns, served.token_ns.front());
  ordered_json gaps = ordered_json::array();
  for (size_t i = 1; i < served.token_ns.size(); ++i) {
    gaps.push_back(ms(served.token_ns[i - 1], served.token_ns[i]));
  }
  out["itl_ms"] = std::move(gaps);
  return out;
}

// As in OpenAI's completions; the keys of `top_logprobs` are token ids.
ordered_json logprobs_of(const ServedRequest& served, bool has_top) {
  ordered_json own = ordered_json::array(), top = ordered_json::array();
  for (const TokenLogprobs& token : served.logprobs) {
    own.push_back(token.logprob);
    ordered_json likeliest = ordered_json::object();
    for (const auto& [id, logprob] : token.top) likeliest[fmt::format("{}", id)] = logprob;
    top.push_back(std::move(likeliest));
  }
  ordered_json out;
  out["token_logprobs"] = std::move(own);
  if (has_top) out["top_logprobs"] = std::move(top);
  return out;
}

ordered_json object_of(const ServingReport& report, const ServingRequest& request,
                       const ServedRequest& served, size_t index) {
  ordered_json out;
  out["request_id"] = request.id;
  out["model"] = request.adapter.empty() ? report.base_model : request.adapter;
  out["prompt_tokens"] = request.prompt.size();
  out["cached_tokens"] = served.num_cached_tokens;
  out["token_ids"] = served.tokens;
  if (!report.texts.empty()) out["text"] = report.texts[index];
  out["finish_reason"] = word_of(served.reason);
  if (served.reason == FinishReason::stop) out["stop_reason"] = served.tokens.back();
  if (served.reason == FinishReason::error) out["error"] = served.error;
  if (request.params.num_logprobs >= 0) {
    out["logprobs"] = logprobs_of(served, request.params.num_logprobs > 0);
  }
  out["timings"] = timings_of(served);
  return out;
}

// --- the table --------------------------------------------------------------------------------

// Requests of one adapter, or of all. Latencies are of those that came to an end of their own.
struct Row {
  int64_t num_requests = 0, num_failed = 0, num_prompt_tokens = 0, num_output_tokens = 0;
  std::vector<double> ttft_ms, tpot_ms;

  void add(const ServingRequest& request, const ServedRequest& served) {
    ++num_requests;
    num_prompt_tokens += int64_t(request.prompt.size());
    num_output_tokens += int64_t(served.tokens.size());
    const bool is_whole =
        served.reason == FinishReason::stop || served.reason == FinishReason::length;
    num_failed += served.reason == FinishReason::error;
    if (!is_whole || served.token_ns.empty()) return;
    ttft_ms.push_back(ms(served.arrival_ns, served.token_ns.front()));
    const size_t num_gaps = served.token_ns.size() - 1;
    if (num_gaps == 0) return;
    tpot_ms.push_back(ms(served.token_ns.front(), served.token_ns.back()) / double(num_gaps));
  }
};

using Cells = std::vector<std::string>;

void add_latencies(Cells& cells, std::vector<double> values) {
  const LatencySummary s = summarize_ms(values, 99);
  cells.push_back(values.empty() ? "-" : format_number(s.mean_ms));
  cells.push_back(values.empty() ? "-" : format_number(s.p99_ms));
}

Cells cells_of(const std::string& name, const Row& row, double duration_s) {
  Cells cells = {report::clip(printable(name), kNameWidth), format_count(row.num_requests),
                 format_count(row.num_failed), format_count(row.num_prompt_tokens),
                 format_count(row.num_output_tokens)};
  cells.push_back(duration_s > 0 ? format_number(double(row.num_output_tokens) / duration_s) : "-");
  add_latencies(cells, row.ttft_ms);
  add_latencies(cells, row.tpot_ms);
  return cells;
}

// Columns as wide as their widest cell, two spaces apart; names to the left, figures to the right.
std::string text_of(const std::vector<Cells>& rows) {
  std::vector<size_t> widths(rows[0].size());
  for (const Cells& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Cells& row : rows) {
    text += fmt::format("{:<{}}", row[0], widths[0]);
    for (size_t i = 1; i < row.size(); ++i) text += fmt::format("  {:>{}}", row[i], widths[i]);
    text += '\n';
  }
  return text;
}

std::string table_of(const ServingReport& report) {
  std::map<std::string, Row> rows;  // by adapter, the base model first
  Row all;
  for_each_request(report, [&](const RequestLine&, const ServingRequest& request,
                               const ServedRequest& served, size_t) {
    rows[request.adapter].add(request, served);
    all.add(request, served);
  });
  const double duration_s = double(report.served.end_ns) / kNsPerSecond;
  std::vector<Cells> table = {{"adapter", "requests", "failed", "prompt", "output", "tok/s",
                               "TTFT ms", "p99", "TPOT ms", "p99"}};
  for (const auto& [name, row] : rows) {
    table.push_back(cells_of(name.empty() ? "(base model)" : name, row, duration_s));
  }
  table.push_back(cells_of("all", all, duration_s));
  return text_of(table);
}

// The first failures, a line each.
std::string problems_of(const ServingReport& report) {
  std::vector<std::string> lines;
  for (const RefusedOperation& refused : report.served.refused) {
    lines.push_back(fmt::format("{}:{}: refused: {}", report.file.path, refused.line, refused.why));
  }
  for_each_request(report, [&](const RequestLine& line, const ServingRequest& request,
                               const ServedRequest& served, size_t) {
    if (served.reason != FinishReason::error) return;
    lines.push_back(
        fmt::format("{}: request {}: {}", report.file.place(line), request.id, served.error));
  });
  std::string text;
  for (size_t i = 0; i < std::min(lines.size(), kMostProblems); ++i) {
    text += fmt::format("failed    {}\n", printable(lines[i]));
  }
  if (lines.size() > kMostProblems) {
    text += fmt::format("failed    and {} more\n", lines.size() - kMostProblems);
  }
  return text;
}

}  // namespace

void write_served_requests(std::ostream& out, const ServingReport& report) {
  for_each_request(report, [&](const RequestLine&, const ServingRequest& request,
                               const ServedRequest& served, size_t index) {
    out << object_of(report, request, served, index)
               .dump(-1, ' ', false, ordered_json::error_handler_t::replace)
        << '\n';
  });
}

std::string host_text(const StepTimes& times) {
  const double steps = double(std::max<int64_t>(1, times.num_steps));
  const double busy_ns = double(std::max<int64_t>(1, times.step_ns + times.waited_ns));
  return fmt::format("{} us a step of {}; the GPU waited for it {:.2f} % of the time; {} of {} {}",
                     format_number(double(times.host_ns) / steps * 1e-3),
                     format_ms(double(times.step_ns) / steps * 1e-6),
                     100 * double(times.waited_ns) / busy_ns, format_count(times.num_ahead),
                     count_text(times.num_steps, "step"), "planned ahead");
}

std::string serving_console(const ServingReport& report) {
  const ServedFile& served = report.served;
  const double duration_s = double(served.end_ns) / kNsPerSecond;
  const auto num_requests = int64_t(served.requests.size());
  std::string text = fmt::format("model     {}\n", printable(report.base_model));
  text += fmt::format("engine    {}\n", report.engine);
  if (served.times) text += fmt::format("host      {}\n", host_text(*served.times));
  text += fmt::format("run       {} in {}, {} req/s; {}, {}, {}, {}\n\n",
                      count_text(num_requests, "request"), format_ms(duration_s * 1e3),
                      format_number(duration_s > 0 ? double(num_requests) / duration_s : 0),
                      count_text(served.num_steps, "step"),
                      count_text(served.num_preemptions, "preemption"),
                      count_text(served.num_loads, "load"),
                      fmt::format("{} to a slot", format_count(served.num_copies)));
  text += table_of(report);
  const std::string problems = problems_of(report);
  return problems.empty() ? text : text + "\n" + problems;
}

int64_t num_failures(const ServingReport& report) {
  return int64_t(report.served.refused.size()) +
         std::ranges::count(report.served.requests, FinishReason::error, &ServedRequest::reason);
}

}  // namespace loratory::sim
