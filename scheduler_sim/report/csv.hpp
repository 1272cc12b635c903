#pragma once

#include <iosfwd>
#include <span>
#include <string_view>

#include "scheduler_sim/metrics/results.hpp"
#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

/// results.csv: a header and one row per configuration, in the order of the result. Columns have
/// the names of results.json; a value that is not finite is an empty field. The last one is
/// `engine`, the same in every row, so that rows of several runs can stand in one table. Lines end
/// in LF.
void write_results_csv(std::ostream& out, std::span<const ConfigResult> configs,
                       std::string_view engine);

/// requests.csv: a header and one row per request of one configuration. Record i is of request i of
/// `trace`. Times are milliseconds of virtual time. Empty fields: a moment that never came; TTFT
/// without a first token, and TPOT of a request that did not complete or has one token; adapter and
/// rank of a request to the base model; id and session of a request that has none.
void write_requests_csv(std::ostream& out, std::span<const RequestRecord> requests,
                        const Trace& trace);

}  // namespace loratory::sim
