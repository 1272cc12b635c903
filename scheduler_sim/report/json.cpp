#include "scheduler_sim/report/json.hpp"

#include <ostream>
#include <string>

#include "scheduler_sim/report/json_object.hpp"

namespace loratory::sim {
namespace report {
namespace {

using Json = nlohmann::ordered_json;

Json inputs_array(const Provenance& provenance) {
  Json inputs = Json::array();
  for (const auto& input : provenance.inputs) {
    inputs.push_back({{"path", input.path}, {"checksum", input.checksum}, {"format", input.format}});
  }
  return inputs;
}

Json workload_object(const WorkloadSummary& workload) {
  Json reuse = Json::array();
  for (const auto& [distance, share] : workload.reuse_distance) reuse.push_back({distance, share});
  return {{"num_requests", workload.num_requests},
          {"duration_s", workload.duration_s},
          {"request_rate", workload.request_rate},
          {"mean_prompt_tokens", workload.mean_prompt_tokens},
          {"mean_output_tokens", workload.mean_output_tokens},
          {"num_adapters", workload.num_adapters},
          {"adapters", workload.adapters},
          {"model", workload.model},
          {"gpu", workload.gpu},
          {"cost_model", workload.cost_model},
          {"num_rows_skipped", workload.num_rows_skipped},
          {"popularity", workload.popularity},
          {"reuse_distance", std::move(reuse)}};
}

/// A limit that is not set is null, so that nobody compares against 0.
Json slo_object(const Slo& slo) {
  const auto limit = [](double ms) { return ms > 0 ? Json(ms) : Json(nullptr); };
  return {{"ttft_ms", limit(slo.ttft_ms)},
          {"tpot_ms", limit(slo.tpot_ms)},
          {"percentile", slo.percentile}};
}

void add_latency(Json& config, const std::string& name, const LatencySummary& latency) {
  config["mean_" + name + "_ms"] = latency.mean_ms;
  config["p50_" + name + "_ms"] = latency.p50_ms;
  config["p90_" + name + "_ms"] = latency.p90_ms;
  config["p99_" + name + "_ms"] = latency.p99_ms;
}

void add_outcome(Json& object, const ConfigResult& config) {
  object["max_loras"] = config.max_loras;
  object["max_cpu_loras"] = config.max_cpu_loras;
  object["seed"] = config.seed;
  object["feasible"] = config.feasible;
  object["meets_slo"] = config.meets_slo;
  object["verdict"] = config.verdict;
  object["num_requests"] = config.num_requests;
  object["completed"] = config.completed;
  object["cancelled"] = config.cancelled;
  object["failed"] = config.failed;
  object["duration_s"] = config.duration_s;
  object["request_throughput"] = config.request_throughput;
  object["total_token_throughput"] = config.total_token_throughput;
  object["output_throughput"] = config.output_throughput;
  object["request_goodput"] = config.request_goodput;
  object["slo_attainment"] = config.slo_attainment;
}

void add_caches(Json& object, const ConfigResult& config) {
  object["adapter_gpu_hit_ratio"] = config.adapter_gpu_hit_ratio;
  object["adapter_cpu_hit_ratio"] = config.adapter_cpu_hit_ratio;
  object["adapter_loads"] = config.adapter_loads;
  object["adapter_load_bytes"] = config.adapter_load_bytes;
  object["adapter_copies"] = config.adapter_copies;
  object["adapter_copy_bytes"] = config.adapter_copy_bytes;
  object["prefix_hit_ratio_tokens"] = config.prefix_hit_ratio_tokens;
  object["prefix_hit_ratio_blocks"] = config.prefix_hit_ratio_blocks;
}

void add_engine(Json& object, const ConfigResult& config) {
  object["num_preemptions"] = config.num_preemptions;
  object["num_drains"] = config.num_drains;
  object["num_steps"] = config.num_steps;
  object["mean_batch_seqs"] = config.mean_batch_seqs;
  object["gpu_busy_fraction"] = config.gpu_busy_fraction;
  object["max_waiting"] = config.max_waiting;
}

void add_memory(Json& object, const MemorySplit& memory) {
  object["hbm_bytes"] = memory.hbm_bytes;
  object["weights_bytes"] = memory.weights_bytes;
  object["slot_bytes"] = memory.slot_bytes;
  object["kv_bytes"] = memory.kv_bytes;
  object["reserve_bytes"] = memory.reserve_bytes;
  object["kv_blocks"] = memory.kv_blocks;
  object["block_bytes"] = memory.block_bytes;
  object["host_bytes"] = memory.host_bytes;
}

Json config_object(const ConfigResult& config) {
  Json object;
  add_outcome(object, config);
  add_latency(object, "ttft", config.ttft);
  add_latency(object, "tpot", config.tpot);
  add_latency(object, "itl", config.itl);
  add_latency(object, "e2el", config.e2el);
  add_latency(object, "queue", config.queue);
  add_caches(object, config);
  add_engine(object, config);
  add_memory(object, config.memory);
  object["event_log_hash"] = config.event_log_hash;
  if (!config.ttft_cdf_ms.empty()) object["ttft_cdf_ms"] = config.ttft_cdf_ms;
  if (!config.tpot_cdf_ms.empty()) object["tpot_cdf_ms"] = config.tpot_cdf_ms;
  return object;
}

Json document(const SizeResult& result) {
  const Provenance& provenance = result.provenance;
  return {{"schema", "loratory.results/1"},
          {"command", provenance.command},
          {"commit", provenance.commit},
          {"version", provenance.version},
          {"seed", provenance.seed},
          {"inputs", inputs_array(provenance)},
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

/// Bytes that are not UTF-8 (a trace may hold any) become U+FFFD instead of an exception.
void write_document(std::ostream& out, const Json& json) {
  out << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

}  // namespace

Json replay_object(const SizeResult& result) {
  Json json = document(result);
  json["configs"] = Json::array();
  for (const ConfigResult& config : result.configs) json["configs"].push_back(config_object(config));
  return json;
}

Json size_object(const SizeResult& result) {
  Json json = document(result);
  json["num_seeds"] = result.num_seeds;
  json["recommended"] = result.recommended < 0 ? Json(nullptr) : Json(result.recommended);
  json["reason"] = result.reason;
  json["next_limit"] = result.next_limit;
  json["configs"] = Json::array();
  for (size_t i = 0; i < result.configs.size(); ++i) {
    Json config = config_object(result.configs[i]);
    add_if_known(config, "goodput_min", result.goodput_min, i);
    add_if_known(config, "goodput_max", result.goodput_max, i);
    add_if_known(config, "ttft_min_ms", result.ttft_min_ms, i);
    add_if_known(config, "ttft_max_ms", result.ttft_max_ms, i);
    json["configs"].push_back(std::move(config));
  }
  json["miss_ratio_curves"] = curves_array(result.miss_ratio_curves);
  return json;
}

}  // namespace report

void write_size_json(std::ostream& out, const SizeResult& result) {
  report::write_document(out, report::size_object(result));
}

void write_replay_json(std::ostream& out, const SizeResult& result) {
  report::write_document(out, report::replay_object(result));
}

}  // namespace loratory::sim
