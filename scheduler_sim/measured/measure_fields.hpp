#pragma once

#include <array>
#include <string_view>

#include "scheduler_sim/measured/measured_run.hpp"

namespace loratory::sim {

/// A figure of RunMeasures and its name in files.
struct MeasureField {
  std::string_view name;
  double RunMeasures::*value;
};

inline constexpr std::array<MeasureField, 14> kMeasureFields{{
    {"completed", &RunMeasures::completed},
    {"input_tps", &RunMeasures::input_tps},
    {"output_tps", &RunMeasures::output_tps},
    {"mean_ttft_ms", &RunMeasures::mean_ttft_ms},
    {"median_ttft_ms", &RunMeasures::median_ttft_ms},
    {"p99_ttft_ms", &RunMeasures::p99_ttft_ms},
    {"mean_tpot_ms", &RunMeasures::mean_tpot_ms},
    {"median_tpot_ms", &RunMeasures::median_tpot_ms},
    {"p99_tpot_ms", &RunMeasures::p99_tpot_ms},
    {"mean_itl_ms", &RunMeasures::mean_itl_ms},
    {"median_itl_ms", &RunMeasures::median_itl_ms},
    {"p99_itl_ms", &RunMeasures::p99_itl_ms},
    {"kv_tokens", &RunMeasures::kv_tokens},
    {"weights_gib", &RunMeasures::weights_gib},
}};

}  // namespace loratory::sim
