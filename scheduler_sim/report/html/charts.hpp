#pragma once

#include <span>
#include <vector>

#include "scheduler_sim/report/html/markup.hpp"
#include "scheduler_sim/sizing/size_result.hpp"
#include "scheduler_sim/trace/trace.hpp"

/// The charts of the page by family. Each returns the figures that the result has data for.
namespace loratory::sim::report {

/// Against max_loras: goodput, TTFT, TPOT, hit ratios (empty below two feasible sizes).
std::vector<Figure> sweep_figures(const SizeResult& result);

/// Where the memory of the GPU goes, one bar a size.
std::vector<Figure> memory_figures(const SizeResult& result);

/// Distribution of TTFT and TPOT over requests, for the focus and its neighbours.
std::vector<Figure> latency_cdf_figures(const SizeResult& result);

/// Miss ratio against the number of slots: every policy on the bare stream, and the replay.
std::vector<Figure> miss_ratio_figures(const SizeResult& result);

/// The adapter stream by itself: popularity, reuse distance.
std::vector<Figure> adapter_figures(const SizeResult& result);

/// Slots, copies, queue and KV use of the focus over time.
std::vector<Figure> timeline_figures(const SizeResult& result,
                                     std::span<const TraceAdapter> adapters);

}  // namespace loratory::sim::report
