#pragma once

#include <iosfwd>
#include <span>
#include <string>
#include <string_view>

#include "scheduler_sim/metrics/results.hpp"
#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

/// results.csv: a header and one row per configuration, in the order of the result. Columns have
/// the names of results.json; a value that is not finite is an empty field. Lines end in LF.
void write_results_csv(std::ostream& out, std::span<const ConfigResult> configs);

/// requests.csv: a header and one row per request of one configuration, in order of arrival. Times
/// are milliseconds of virtual time; a moment that never came is an empty field, and so is the
/// adapter of a request to the base model.
void write_requests_csv(std::ostream& out, std::span<const RequestRecord> requests,
                        std::span<const TraceAdapter> adapters);

/// One field by RFC 4180: quoted when it holds a comma, a quote or a line break.
std::string csv_field(std::string_view text);

}  // namespace loratory::sim
