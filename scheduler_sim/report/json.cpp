#include "scheduler_sim/report/json.hpp"

#include <ostream>
#include <string>

#include "scheduler_sim/report/config_fields.hpp"
#include "scheduler_sim/report/json_object.hpp"

namespace loratory::sim {
namespace report {
namespace {

using Json = nlohmann::ordered_json;

Json inputs_array(const Provenance& provenance) {
  Json inputs = Json::array();
  for (const auto& input : provenance.inputs) {
    inputs.push_back(
        {{"path", input.path}, {"checksum", input.checksum}, {"format", input.format}});
  }
  return inputs;
}

Json settings_array(const Provenance& provenance) {
  Json settings = Json::array();
  for (const Setting& setting : provenance.settings) {
    settings.push_back(
        {{"name", setting.name}, {"value", setting.value}, {"given", setting.is_given}});
  }
  return settings;
}

Json workload_object(const WorkloadSummary& workload) {
  Json reuse = Json::array();
  for (const auto& [distance, share] : workload.reuse_distance) reuse.push_back({distance, share});
  Json object{{"num_requests", workload.num_requests},
              {"duration_s", workload.duration_s},
              {"request_rate", workload.request_rate},
              {"mean_prompt_tokens", workload.mean_prompt_tokens},
              {"mean_output_tokens", workload.mean_output_tokens},
              {"num_adapters", workload.num_adapters},
              {"adapters", workload.adapters},
              {"model", workload.model},
              {"gpu", workload.gpu},
              {"cost_model", workload.cost_model},
              {"kv_block_tokens", workload.kv_block_tokens},
              {"num_rows_skipped", workload.num_rows_skipped},
              {"popularity", workload.popularity},
              {"reuse_distance", std::move(reuse)}};
  if (!workload.engine.empty()) object["engine"] = workload.engine;
  if (!workload.notes.empty()) object["notes"] = workload.notes;
  return object;
}

// A limit that is not set is null, so that nobody compares against 0.
Json slo_object(const Slo& slo) {
  const auto limit = [](double ms) { return ms > 0 ? Json(ms) : Json(nullptr); };
  return {{"ttft_ms", limit(slo.ttft_ms)},
          {"tpot_ms", limit(slo.tpot_ms)},
          {"percentile", slo.percentile}};
}

Json replicas_array(const std::vector<ReplicaResult>& replicas) {
  Json array = Json::array();
  for (const ReplicaResult& r : replicas) {
    array.push_back({{"num_requests", r.num_requests},
                     {"num_adapters", r.num_adapters},
                     {"slo_attainment", r.slo_attainment},
                     {"p50_ttft_ms", r.p50_ttft_ms},
                     {"slo_ttft_ms", r.slo_ttft_ms},
                     {"slo_tpot_ms", r.slo_tpot_ms},
                     {"adapter_gpu_hit_ratio", r.adapter_gpu_hit_ratio},
                     {"adapter_copies", r.adapter_copies},
                     {"prefix_hit_ratio_tokens", r.prefix_hit_ratio_tokens},
                     {"num_preemptions", r.num_preemptions},
                     {"max_waiting", r.max_waiting},
                     {"gpu_busy_s", r.gpu_busy_s},
                     {"event_log_hash", r.event_log_hash}});
  }
  return array;
}

Json cause_object(const Cause& cause) {
  if (cause.kind == CauseKind::none) return nullptr;
  return {{"kind", name_of(cause.kind)},
          {"measure", cause.is_ttft ? "ttft" : "tpot"},
          {"miss", cause.miss},
          {"miss_without", cause.miss_without},
          {"miss_of_base", cause.miss_of_base},
          {"figure", cause.figure == kUnknownFigure ? Json() : Json(cause.figure)}};
}

Json config_object(const ConfigResult& config, const SizeResult& result) {
  Json object;
  visit_fields(config, [&](const auto& name, const auto& value) { object[name] = value; });
  object["cause"] = cause_object(config.cause);
  if (!config.fleet.replicas.empty()) object["replicas"] = replicas_array(config.fleet.replicas);
  if (!config.ttft_cdf_ms.empty()) object["ttft_cdf_ms"] = config.ttft_cdf_ms;
  if (!config.tpot_cdf_ms.empty()) object["tpot_cdf_ms"] = config.tpot_cdf_ms;
  object["vllm"] = vllm_object(config, result.workload, result.slo);
  return object;
}

Json document(const SizeResult& result) {
  const Provenance& provenance = result.provenance;
  return {{"schema", kResultsSchema},
          {"command", provenance.command},
          {"commit", provenance.commit},
          {"version", provenance.version},
          {"seed", provenance.seed},
          {"inputs", inputs_array(provenance)},
          {"settings", settings_array(provenance)},
          {"workload", workload_object(result.workload)},
          {"slo", slo_object(result.slo)}};
}

void add_if_known(Json& object, const char* key, const std::vector<double>& values, size_t i) {
  if (i < values.size()) object[key] = values[i];
}

Json curves_array(const std::vector<MissRatioCurve>& curves) {
  Json array = Json::array();
  for (const MissRatioCurve& curve : curves) {
    array.push_back(
        {{"policy", curve.policy}, {"sizes", curve.sizes}, {"miss_ratios", curve.miss_ratios}});
  }
  return array;
}

// What limits the chosen configuration above its headroom.
Json limit_object(const SizeResult& result) {
  if (!result.bounds || result.bounds->limit.kind == CauseKind::none) return nullptr;
  Json limit = cause_object(result.bounds->limit);
  limit["rate_factor"] = result.bounds->limit_factor;
  return limit;
}

Json yardsticks_object(const SizeResult& result) {
  if (!result.bounds) return nullptr;
  return {{"base", config_object(result.bounds->base, result)},
          {"resident", config_object(result.bounds->resident, result)}};
}

Json remedies_array(const SizeResult& result) {
  Json array = Json::array();
  for (const Remedy& remedy : result.remedies) {
    array.push_back({{"flags", remedy.flags},
                     {"feasible", remedy.fits},
                     {"meets_slo", remedy.result.meets_slo},
                     {"max_loras", remedy.result.max_loras},
                     {"verdict", verdict_text(remedy.result)}});
  }
  return array;
}

// Of a replay: all that a configuration has.
Json replay_object(const SizeResult& result) {
  Json json = document(result);
  json["configs"] = Json::array();
  for (const ConfigResult& config : result.configs) {
    json["configs"].push_back(config_object(config, result));
  }
  return json;
}

// Of a sweep: what was chosen, and the band over seeds.
Json sweep_object(const SizeResult& result) {
  Json json = document(result);
  json["num_seeds"] = result.num_seeds;
  json["recommended"] = result.recommended < 0 ? Json(nullptr) : Json(result.recommended);
  json["choice"] = result.choice == Choice::robust ? "robust" : "smallest";
  json["smallest"] = result.smallest < 0 ? Json(nullptr) : Json(result.smallest);
  json["reason"] = reason(result);
  json["next_limit"] = next_limit(result);
  json["limit"] = limit_object(result);
  json["yardsticks"] = yardsticks_object(result);
  json["remedies"] = remedies_array(result);
  json["configs"] = Json::array();
  for (size_t i = 0; i < result.configs.size(); ++i) {
    Json config = config_object(result.configs[i], result);
    add_if_known(config, "goodput_min", result.goodput_min, i);
    add_if_known(config, "goodput_max", result.goodput_max, i);
    add_if_known(config, "ttft_min_ms", result.ttft_min_ms, i);
    add_if_known(config, "ttft_max_ms", result.ttft_max_ms, i);
    json["configs"].push_back(std::move(config));
  }
  for (const ConfigResult& fleet : result.fleets) {
    json["fleets"].push_back(config_object(fleet, result));
  }
  json["miss_ratio_curves"] = curves_array(result.miss_ratio_curves);
  return json;
}

}  // namespace

Json results_object(const SizeResult& result) {
  return result.is_replay ? replay_object(result) : sweep_object(result);
}

}  // namespace report

// Bytes that are not UTF-8 (a trace may hold any) become U+FFFD instead of an exception.
void write_results_json(std::ostream& out, const SizeResult& result) {
  const nlohmann::ordered_json json = report::results_object(result);
  out << json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
}

}  // namespace loratory::sim
