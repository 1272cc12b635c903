#pragma once

#include <nlohmann/json.hpp>

#include "scheduler_sim/sizing/size_result.hpp"

namespace loratory::sim::report {

inline constexpr const char* kResultsSchema = "loratory.results/2";

/// The document behind results.json. For .cpp files only: the header is heavy.
nlohmann::ordered_json results_object(const SizeResult& result);

/// One configuration as `vllm bench serve --save-result` would have written it. A latency has its
/// mean, median, deviation and percentiles 50, 90, 95, 99 and that of the SLO.
nlohmann::ordered_json vllm_object(const ConfigResult& config, const WorkloadSummary& workload,
                                   const Slo& slo);

}  // namespace loratory::sim::report
