#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "scheduler_sim/report/advice.hpp"
#include "scheduler_sim/report/format.hpp"
#include "scheduler_sim/report/html/markup.hpp"
#include "scheduler_sim/report/html/sections.hpp"
#include "scheduler_sim/report/html/sweep.hpp"
#include "scheduler_sim/report/words.hpp"

namespace loratory::sim::report {
namespace {

std::string heading(const SizeResult& result) {
  const auto words = [](const char* what, const ConfigResult& config) {
    const int32_t replicas = config.fleet.num_replicas;
    const std::string text = fmt::format("{} <em>{}</em>", what, config.max_loras);
    return replicas == 1 ? text : fmt::format("{} on <em>{}</em> replicas", text, replicas);
  };
  if (result.is_replay) return words("Replay at max_loras", result.configs[0]);
  if (result.recommended < 0) return "No configuration meets the SLOs";
  return words("Set max_loras to", result.configs[size_t(result.recommended)]);
}

std::string flags(const SizeResult& result) {
  const int32_t focus = focus_of(result);
  if (focus < 0) return "";
  const ConfigResult& config = result.configs[size_t(focus)];
  const char* prefix = result.is_replay || result.recommended >= 0 ? "" : "closest: ";
  return fmt::format("<p class=\"flags\">{}<code>{}</code></p>\n", prefix, flags_of(config));
}

std::string sentences(const SizeResult& result) {
  std::string html = "<dl class=\"say\">";
  const auto say = [&](const char* label, const std::string& words) {
    if (!words.empty()) html += fmt::format("<dt>{}</dt><dd>{}</dd>\n", label, html_name(words));
  };
  if (result.is_replay) say("Verdict", verdict_text(result.configs[0]));
  say("Why", reason(result));
  say(result.recommended >= 0 ? "Next limit" : "Instead", next_limit(result));
  say("Bounds", yardstick_sentence(result));
  say("Adapters", about_adapters(result));
  say("Trust", caveat(result));
  return html + "</dl>\n";
}

std::string tile(const std::string& label, const std::string& value, const std::string& note,
                 const char* tone = "") {
  return fmt::format("<div class=\"{}\"><dt>{}</dt><dd>{}<small>{}</small></dd></div>\n", tone,
                     label, html_text(value), html_text(note));
}

std::string latency_tile(const std::string& name, const LatencySummary& latency, double limit_ms,
                         double percentile) {
  if (limit_ms <= 0) {
    return tile(fmt::format("{} p99", name), format_ms(latency.p99_ms),
                fmt::format("median {}", format_ms(latency.p50_ms)));
  }
  const bool good = latency.pslo_ms <= limit_ms;
  return tile(fmt::format("{} {}", name, format_percentile(percentile)), format_ms(latency.pslo_ms),
              fmt::format("SLO {}: {}", format_ms(limit_ms), good ? "met" : "missed"),
              good ? "good" : "bad");
}

std::string tiles(const SizeResult& result) {
  const int32_t focus = focus_of(result);
  if (focus < 0) return "";
  const ConfigResult& c = result.configs[size_t(focus)];
  const Slo& slo = result.slo;
  return "<dl class=\"tiles\">\n" +
         tile("Goodput", fmt::format("{} req/s", format_number(c.request_goodput)),
              fmt::format("{} meet the SLOs", format_percent(c.slo_attainment))) +
         tile("GPU hit ratio", format_percent(c.adapter_gpu_hit_ratio),
              fmt::format("CPU: {} of the rest", format_percent(c.adapter_cpu_hit_ratio))) +
         latency_tile("TTFT", c.ttft, slo.ttft_ms, slo.percentile) +
         latency_tile("TPOT", c.tpot, slo.tpot_ms, slo.percentile) +
         tile("Memory of the slots", format_bytes(double(c.memory.slot_bytes)),
              fmt::format("of {} usable", format_bytes(double(c.memory.hbm_bytes)))) +
         tile("KV blocks left", format_count(c.memory.kv_blocks),
              fmt::format("{} preemptions", format_count(c.num_preemptions))) +
         "</dl>\n";
}

}  // namespace

std::string page_title(const SizeResult& result) {
  if (result.is_replay) {
    return fmt::format("loratory replay, max_loras {}", result.configs[0].max_loras);
  }
  return fmt::format("loratory size: {}", headline(result));
}

std::string verdict_section(const SizeResult& result) {
  const WorkloadSummary& w = result.workload;
  return fmt::format("<p class=\"eyebrow\">loratory {} &middot; {} on {} &middot; {}</p>\n",
                     result.is_replay ? "replay" : "size", html_name(w.model), html_name(w.gpu),
                     html_name(w.adapters)) +
         "<div class=\"verdict\">\n<div>\n<h1>" + heading(result) + "</h1>\n" + flags(result) +
         sentences(result) + "</div>\n" + tiles(result) + "</div>\n";
}

namespace {

// A flag and its value stay on one line where there is room: a browser breaks lines at any hyphen.
std::string whole_flags(std::string_view flags) {
  std::string html;
  while (!flags.empty()) {
    const size_t end = std::min(flags.find(" --"), flags.size());
    html +=
        fmt::format("{}<span>{}</span>", html.empty() ? "" : " ", html_name(flags.substr(0, end)));
    flags.remove_prefix(std::min(end + 1, flags.size()));
  }
  return html;
}

}  // namespace

std::string workload_section(const SizeResult& result) {
  std::string html = "<dl class=\"facts\">";
  for (const Fact& fact : workload_facts(result)) {
    const bool is_flags = fact.value.starts_with("--");
    html += fmt::format("<dt>{}</dt><dd>{}</dd>\n", html_text(fact.label),
                        is_flags ? whole_flags(fact.value) : html_name(fact.value));
  }
  return html + "</dl>\n";
}

}  // namespace loratory::sim::report
