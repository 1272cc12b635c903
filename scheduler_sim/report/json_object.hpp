#pragma once

#include <nlohmann/json.hpp>

#include "scheduler_sim/sizing/size_result.hpp"

namespace loratory::sim::report {

/// The document behind results.json. For .cpp files only: the header is heavy.
nlohmann::ordered_json results_object(const SizeResult& result);

}  // namespace loratory::sim::report
