#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "scheduler_sim/cost/step_profile.hpp"
#include "scheduler_sim/measured/measured_run.hpp"
#include "scheduler_sim/measured/predict_runs.hpp"
#include "scheduler_sim/measured/profile_terms.hpp"
#include "scheduler_sim/measured/simulate_run.hpp"

namespace loratory::sim {

/// The server of a run but for its step times. Throws InputError.
using EngineOf = std::function<EngineSpec(const MeasuredRun&)>;

struct CalibrationOptions {
  int num_rounds = 4;  ///< of simulating all runs and fitting the terms to what came out
  uint64_t seed = 1;
  bool from_columns = false;                   ///< column_batches instead of simulations
  int num_threads = 0;                         ///< 0 = one per core
  std::function<void()> on_simulated = [] {};  ///< after each run of a round; by any thread
};

struct CalibratedTerm {
  const ProfileTerm* term = nullptr;
  double value = 0, error = 0;  ///< +- standard error
  double prior = 0, sigma = 0;  ///< what was known before
  bool is_identified = false;   ///< false: the runs do not tell, and `value` is the prior
};

struct Calibration {
  StepProfile profile;
  std::vector<CalibratedTerm> terms;    ///< step_terms(), then server_terms()
  std::vector<SimulatedRun> simulated;  ///< the runs, with this profile
};

/// Fits the named terms of a step time to runs of one server, and what the server adds. A round
/// simulates every run, then finds the terms at which the mean over its sampled steps, and the
/// copies between them, last as long as the measured TPOT says; the next round has the batches that
/// come with such steps. Relative residuals, soft-L1, priors (fit_bounded). What outputs, unloaded
/// TTFT and the ratio of ITL to TPOT tell gives ServerTerms.
///
/// `start` is where the search begins, null = at the priors. Repeats: same arguments, same profile,
/// whatever the number of threads. Throws InputError if the runs are of several servers (model,
/// GPU, engine, dtype or tp differ), or fewer than kLeastRuns have a TPOT.
Calibration calibrate(std::span<const MeasuredRun> runs, const EngineOf& engine_of,
                      const CalibrationOptions& options, const Calibration* start = nullptr);

inline constexpr int64_t kLeastRuns = 4;

/// The fold of each run: whole sweeps, the i-th sweep in fold i modulo num_folds. Throws InputError
/// if there are fewer sweeps than folds.
std::vector<int> folds_of(std::span<const MeasuredRun> runs, int num_folds);

struct CrossValidation {
  int num_folds = 0;
  std::vector<int> fold;                ///< of each run
  std::vector<PredictedRun> predicted;  ///< of each run, by a profile fitted without its sweep
  std::vector<StepProfile> profiles;    ///< of each fold
};

/// Leaves out every fold of folds_of() in turn. Each fit begins at `all` and simulates with its own
/// terms.
CrossValidation cross_validate(std::span<const MeasuredRun> runs, const EngineOf& engine_of,
                               const CalibrationOptions& options, const Calibration& all,
                               int num_folds);

}  // namespace loratory::sim
