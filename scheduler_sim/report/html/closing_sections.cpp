#include <fmt/format.h>

#include <array>

#include "scheduler_sim/report/html/markup.hpp"
#include "scheduler_sim/report/html/sections.hpp"
#include "scheduler_sim/report/html/sweep.hpp"
#include "scheduler_sim/report/html/thin.hpp"
#include "scheduler_sim/report/json_object.hpp"

namespace loratory::sim::report {
namespace {

struct Term {
  const char* word;
  const char* meaning;
};

constexpr std::array kTerms = {
    Term{"TTFT", "Time from arrival to the first token, waiting included."},
    Term{"TPOT", "(E2EL - TTFT) / (output tokens - 1); a request with one token has none."},
    Term{"E2EL", "Time from arrival to the last token."},
    Term{"Queue", "Time from arrival to the first step that has tokens of the request."},
    Term{"Goodput", "Completed requests per second that meet every SLO."},
    Term{"SLO met", "Share of all requests that meet every SLO."},
    Term{"Headroom", "Largest multiple of the request rate at which every SLO is met."},
    Term{"Late",
         "Verdicts name TTFT or TPOT, at the SLO's percentile, as a multiple of its limit."},
    Term{"GPU hit",
         "Of requests with an adapter, those whose adapter was in a slot when they arrived."},
    Term{"CPU hit", "Of those not on the GPU, the adapter was in host memory."},
    Term{"Prefix hit", "Share of prompt tokens whose KV blocks were in the prefix cache."},
    Term{"Copies", "Adapters copied from host memory into a slot."},
    Term{"Percentiles", "By linear interpolation between order statistics."},
};

using Json = nlohmann::ordered_json;

// Arrays of thousands of entries (popularity, curves) keep kMaxCurvePoints of them. Arrays of
// equal length keep the same entries, so sizes and miss ratios stay together.
void thin(Json& json) {
  if (json.is_object()) {
    for (auto& [key, value] : json.items()) {
      if (key != "configs") thin(value);
    }
  } else if (json.is_array()) {
    Json kept = Json::array();
    for (const size_t i : kept_indices(json.size())) kept.push_back(std::move(json[i]));
    json = std::move(kept);
    for (Json& value : json) thin(value);
  }
}

// '<' occurs only inside JSON strings, where \u003c means the same and cannot end the element.
std::string safe_in_script(std::string_view json) {
  std::string safe;
  for (const char c : json) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

}  // namespace

std::string definitions_section() {
  std::string html = "<section id=\"definitions\"><h2>Definitions</h2>\n<dl class=\"terms\">";
  for (const Term& term : kTerms) {
    html += fmt::format("<dt>{}</dt><dd>{}</dd>\n", term.word, html_text(term.meaning));
  }
  return html + "</dl></section>\n";
}

namespace {

std::string settings_table(const Provenance& provenance) {
  if (provenance.settings.empty()) return "";
  std::string html =
      "<details class=\"flags-table\"><summary>Every flag of the run</summary>\n<div "
      "class=\"scroll\"><table>"
      "<thead><tr><th>flag</th><th>value</th><th>from</th></tr></thead><tbody>\n";
  for (const Setting& setting : provenance.settings) {
    html += fmt::format("<tr><td>--{}</td><td>{}</td><td>{}</td></tr>\n", html_text(setting.name),
                        setting.value.empty() ? "-" : html_name(setting.value),
                        setting.is_given ? "given" : "default");
  }
  return html + "</tbody></table></div></details>\n";
}

}  // namespace

std::string provenance_footer(const Provenance& p, std::string_view more) {
  std::string html =
      fmt::format("<footer>\n<p><code>{}</code></p>\n<p>loratory {}, commit {}, seed {}</p>\n",
                  html_name(p.command), html_text(p.version), html_text(p.commit), p.seed);
  html += settings_table(p);
  for (const auto& input : p.inputs) {
    html += fmt::format("<p>{} ({}) {}</p>\n", html_name(input.path), html_text(input.format),
                        html_text(input.checksum));
  }
  return fmt::format("{}{}</footer>\n", html, more);
}

std::string provenance_footer(const SizeResult& result) {
  std::string event_logs;
  for (const ConfigResult& c : result.configs) {
    if (c.event_log_hash.empty() || result.configs.size() > 1) continue;
    event_logs += fmt::format("<p>event log {}</p>\n", html_text(c.event_log_hash));
  }
  return provenance_footer(result.provenance, event_logs);
}

std::string data_script(std::string_view id, std::string_view json) {
  return fmt::format("<script type=\"application/json\" id=\"{}\">{}</script>\n", id,
                     safe_in_script(json));
}

std::string data_island(const SizeResult& result) {
  Json json = results_object(result);
  thin(json);
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return data_script("results", text);
}

}  // namespace loratory::sim::report
