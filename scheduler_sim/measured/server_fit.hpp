#pragma once

#include <span>
#include <vector>

#include "scheduler_sim/cost/server_terms.hpp"
#include "scheduler_sim/measured/bounded_fit.hpp"
#include "scheduler_sim/measured/measured_run.hpp"
#include "scheduler_sim/measured/simulate_run.hpp"

namespace loratory::sim {

/// The mean of the exponential draw that, with the described lengths, gives outputs as short as the
/// measured ones; 0 if they are not shorter. Told by the runs that finished nearly all that came,
/// because others are short of long requests.
FittedParameter mean_tokens_to_stop(std::span<const MeasuredRun> runs);

/// What is known of server_terms() before, in their order.
const std::vector<FitParameter>& server_priors();

struct ServerFit {
  ServerTerms server;
  std::vector<FittedParameter> terms;  ///< in the order of server_terms()
};

/// ServerTerms that bring what was simulated with `now` nearer to what was measured: frontend_ms
/// from the TTFT of unloaded runs, the polls from the ratio of ITL to TPOT.
ServerFit fit_server(std::span<const MeasuredRun> runs, std::span<const SimulatedRun> simulated,
                     const ServerTerms& now);

}  // namespace loratory::sim
