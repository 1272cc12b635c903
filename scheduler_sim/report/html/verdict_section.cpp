#include <fmt/format.h>

#include "scheduler_sim/report/format.hpp"
#include "scheduler_sim/report/html/markup.hpp"
#include "scheduler_sim/report/html/sections.hpp"
#include "scheduler_sim/report/html/sweep.hpp"
#include "scheduler_sim/report/words.hpp"

namespace loratory::sim::report {
namespace {

bool is_replay(const SizeResult& result) {
  return result.configs.size() == 1 && result.recommended < 0;
}

std::string heading(const SizeResult& result) {
  if (is_replay(result)) {
    return fmt::format("Replay at max_loras <em>{}</em>", result.configs[0].max_loras);
  }
  if (result.recommended < 0) return "No configuration meets the SLOs";
  return fmt::format("Set max_loras to <em>{}</em>",
                     result.configs[static_cast<size_t>(result.recommended)].max_loras);
}

std::string flags(const SizeResult& result) {
  const int32_t focus = focus_of(result);
  if (focus < 0) return "";
  const ConfigResult& config = result.configs[static_cast<size_t>(focus)];
  const char* prefix = is_replay(result) || result.recommended >= 0 ? "" : "closest: ";
  return fmt::format("<p class=\"flags\">{}<code>--max-loras {} --max-cpu-loras {}</code></p>\n",
                     prefix, config.max_loras, config.max_cpu_loras);
}

std::string sentences(const SizeResult& result) {
  std::string html = "<dl class=\"say\">";
  const auto say = [&](const char* label, const std::string& words) {
    if (!words.empty()) html += fmt::format("<dt>{}</dt><dd>{}</dd>\n", label, escape(words));
  };
  say(is_replay(result) ? "Verdict" : "Why",
      is_replay(result) ? result.configs[0].verdict : result.reason);
  say("Next limit", result.next_limit);
  return html + "</dl>\n";
}

std::string tile(const char* label, const std::string& value, const std::string& note,
                 const char* tone = "") {
  return fmt::format("<div class=\"{}\"><dt>{}</dt><dd>{}<small>{}</small></dd></div>\n", tone, label,
                     escape(value), escape(note));
}

std::string latency_tile(const char* label, const LatencySummary& latency, double at_percentile_ms,
                         double limit_ms) {
  const std::string median = "median " + format_ms(latency.p50_ms);
  if (limit_ms <= 0) return tile(label, format_ms(latency.p99_ms), median);
  const bool good = at_percentile_ms <= limit_ms;
  return tile(label, format_ms(latency.p99_ms),
              fmt::format("{} the SLO of {}", good ? "within" : "over", format_ms(limit_ms)),
              good ? "good" : "bad");
}

/// The kept percentile that the SLO is judged on; p99 for any other.
double at_percentile(const LatencySummary& latency, double percentile) {
  return percentile == 50 ? latency.p50_ms : percentile == 90 ? latency.p90_ms : latency.p99_ms;
}

std::string tiles(const SizeResult& result) {
  const int32_t focus = focus_of(result);
  if (focus < 0) return "";
  const ConfigResult& c = result.configs[static_cast<size_t>(focus)];
  const Slo& slo = result.slo;
  return "<dl class=\"tiles\">\n" +
         tile("Goodput", format_number(c.request_goodput) + " req/s",
              format_percent(c.slo_attainment) + " of requests") +
         tile("Adapter found on the GPU", format_percent(c.adapter_gpu_hit_ratio),
              fmt::format("rest: {} on the CPU", format_percent(c.adapter_cpu_hit_ratio))) +
         latency_tile("TTFT p99", c.ttft, at_percentile(c.ttft, slo.percentile), slo.ttft_ms) +
         latency_tile("TPOT p99", c.tpot, at_percentile(c.tpot, slo.percentile), slo.tpot_ms) +
         tile("Memory of the slots", format_bytes(static_cast<double>(c.memory.slot_bytes)),
              fmt::format("of {} usable", format_bytes(static_cast<double>(c.memory.hbm_bytes)))) +
         tile("KV blocks left", format_count(c.memory.kv_blocks),
              fmt::format("{} preemptions", format_count(c.num_preemptions))) +
         "</dl>\n";
}

}  // namespace

std::string page_title(const SizeResult& result) {
  if (is_replay(result)) return fmt::format("loratory replay, max_loras {}", result.configs[0].max_loras);
  return "loratory size: " + headline(result);
}

std::string verdict_section(const SizeResult& result) {
  const WorkloadSummary& w = result.workload;
  return fmt::format("<p class=\"eyebrow\">loratory {} &middot; {} on {} &middot; {}</p>\n",
                     is_replay(result) ? "replay" : "size", escape(w.model), escape(w.gpu),
                     escape(w.adapters)) +
         "<div class=\"verdict\">\n<div>\n<h1>" + heading(result) + "</h1>\n" + flags(result) +
         sentences(result) + "</div>\n" + tiles(result) + "</div>\n";
}

std::string workload_section(const SizeResult& result) {
  std::string html = "<dl class=\"facts\">";
  for (const Fact& fact : workload_facts(result)) {
    html += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escape(fact.label), escape(fact.value));
  }
  return html + "</dl>\n";
}

}  // namespace loratory::sim::report
