#pragma once

#include <string>
#include <vector>

#include "scheduler_sim/sizing/size_result.hpp"

namespace loratory::sim::report {

/// The configurations that the charts draw: one for each max_loras, by ascending max_loras. Where
/// several host sizes were tried, the one of the focus, else the one of best goodput.
std::vector<size_t> sweep_of(const SizeResult& result);

/// The configuration that the page is about: the recommended one, else the best goodput; -1 = none.
int32_t focus_of(const SizeResult& result);

/// The focus and its neighbours in the sweep, by ascending max_loras.
std::vector<size_t> neighbours_of_focus(const SizeResult& result);

/// The smallest max_loras that reaches 95 % of the best goodput; -1 = none is feasible.
int32_t knee_of(const SizeResult& result);

/// "16 (recommended)" or "32".
std::string size_label(const SizeResult& result, size_t config_index);

}  // namespace loratory::sim::report
