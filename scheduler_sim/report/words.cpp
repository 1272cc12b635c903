#include "scheduler_sim/report/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "scheduler_sim/report/format.hpp"

namespace loratory::sim::report {
namespace {

std::string input_sentence(const Provenance& provenance) {
  std::string text;
  for (const auto& input : provenance.inputs) {
    if (!text.empty()) text += ", ";
    text += fmt::format("{} ({}, {})", input.path, input.format, input.checksum);
  }
  return text.empty() ? "generated" : text;
}

std::string load_sentence(const WorkloadSummary& w) {
  std::string text = fmt::format("{} requests in {}, {} req/s; mean prompt {}, output {} tokens",
                                 format_count(w.num_requests), format_ms(w.duration_s * 1e3),
                                 format_number(w.request_rate), format_number(w.mean_prompt_tokens),
                                 format_number(w.mean_output_tokens));
  if (w.num_rows_skipped > 0) {
    text += fmt::format("; {} bad rows skipped", format_count(int64_t(w.num_rows_skipped)));
  }
  return text;
}

template <class Chosen>
std::string as_flags(const std::vector<Setting>& settings, Chosen is_chosen) {
  std::string text;
  for (const Setting& setting : settings) {
    if (!is_chosen(setting)) continue;
    text += fmt::format("{}--{}", text.empty() ? "" : " ", setting.name);
    if (setting.value != "true") text += " " + setting.value;
  }
  return text;
}

}  // namespace

std::string slo_sentence(const Slo& slo) {
  const std::string percentile = format_percentile(slo.percentile);
  std::string text;
  if (slo.ttft_ms > 0) text += fmt::format("TTFT {} <= {}", percentile, format_ms(slo.ttft_ms));
  if (slo.tpot_ms > 0) {
    text += fmt::format("{}TPOT {} <= {}", text.empty() ? "" : ", ", percentile,
                        format_ms(slo.tpot_ms));
  }
  return text.empty() ? "none" : text;
}

std::vector<Fact> workload_facts(const SizeResult& result) {
  const WorkloadSummary& w = result.workload;
  const std::string engine = w.engine.empty() ? "" : fmt::format(", engine {}", w.engine);
  std::vector<Fact> facts = {
      {"trace", input_sentence(result.provenance)},
      {"load", load_sentence(w)},
      {"adapters", w.adapters},
      {"system", fmt::format("{} on {}{}, cost model {}, KV blocks of {} tokens", w.model, w.gpu,
                             engine, w.cost_model, w.kv_block_tokens)},
      {"SLO", slo_sentence(result.slo)},
      {"seed", result.num_seeds > 1
                   ? fmt::format("{} and {} more", result.provenance.seed, result.num_seeds - 1)
                   : fmt::format("{}", result.provenance.seed)},
  };
  const std::string given = given_settings(result.provenance);
  if (!given.empty()) facts.push_back({"flags", given});
  const std::string defaults = notable_defaults(result.provenance);
  if (!defaults.empty()) facts.push_back({"defaults", defaults});
  for (const std::string& note : w.notes) facts.push_back({"note", note});
  return facts;
}

std::string given_settings(const Provenance& provenance) {
  return as_flags(provenance.settings, [](const Setting& setting) {
    return setting.is_given && setting.name != "trace" && setting.value != "false";
  });
}

bool is_notable_default(const Setting& setting) {
  constexpr auto kNames = std::to_array<std::string_view>(
      {"tp", "dtype", "kv-cache-dtype", "gpu-memory-utilization", "max-lora-rank", "max-model-len",
       "max-num-seqs", "max-num-batched-tokens", "policy", "load-mode"});
  return !setting.is_given && !setting.value.empty() &&
         std::ranges::find(kNames, setting.name) != kNames.end();
}

std::string notable_defaults(const Provenance& provenance) {
  return as_flags(provenance.settings, is_notable_default);
}

std::string headline(const SizeResult& result) {
  if (result.recommended < 0) return "No configuration meets the SLOs.";
  const ConfigResult& config = result.configs[size_t(result.recommended)];
  return "Set " + flags_of(config);
}

bool host_sizes_differ(const std::vector<ConfigResult>& configs) {
  return std::ranges::any_of(configs, [&](const ConfigResult& c) {
    return c.max_cpu_loras != configs.front().max_cpu_loras;
  });
}

std::string flags_of(const ConfigResult& config) {
  std::string flags =
      fmt::format("--max-loras {} --max-cpu-loras {}", config.max_loras, config.max_cpu_loras);
  const FleetSummary& fleet = config.fleet;
  if (fleet.router.empty()) return flags;
  return fmt::format("{} --replicas {} --router {}", flags, fleet.num_replicas, fleet.router);
}

}  // namespace loratory::sim::report
