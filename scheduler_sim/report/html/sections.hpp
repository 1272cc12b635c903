#pragma once

#include <string>
#include <string_view>

#include "scheduler_sim/sizing/size_result.hpp"

/// The parts of the page that are not charts, as HTML markup.
namespace loratory::sim::report {

std::string page_title(const SizeResult& result);

/// What to set, why, what limits next, and the figures that matter.
std::string verdict_section(const SizeResult& result);
std::string workload_section(const SizeResult& result);
std::string configs_section(const SizeResult& result);
std::string fleet_section(const SizeResult& result);  ///< empty without a fleet or a price
std::string definitions_section();
std::string provenance_footer(const SizeResult& result);
std::string provenance_footer(const Provenance& provenance, std::string_view more = {});

/// JSON in a script element that runs nothing.
std::string data_script(std::string_view id, std::string_view json);

/// The numbers of the page as JSON, in a script element that runs nothing.
std::string data_island(const SizeResult& result);

}  // namespace loratory::sim::report
