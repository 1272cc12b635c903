#include "scheduler_sim/measured/calibration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "reference/base/input_error.hpp"
#include "reference/base/units.hpp"
#include "scheduler_sim/measured/column_batches.hpp"
#include "scheduler_sim/measured/server_fit.hpp"
#include "scheduler_sim/sizing/tasks.hpp"

namespace loratory::sim {
namespace {

// Two runs of one description differ by about this: luck of the arrivals, terms that are not there.
constexpr double kNoise = 0.03;
constexpr double kDamping = 0.8;  // of the way to the fitted terms: longer steps change the batches
constexpr size_t kStepsOfRun = 256;

void require_one_server(std::span<const MeasuredRun> runs) {
  int64_t num_known = 0;
  for (const MeasuredRun& run : runs) {
    const MeasuredRun& first = runs.front();
    const auto require_same = [&](const std::string& a, const std::string& b, const char* what) {
      if (a == b) return;
      throw InputError(run.place,
                       fmt::format("its {} is {}, that of {} is {}", what, b, first.place, a),
                       "calibrate one server at a time");
    };
    require_same(first.model, run.model, "model");
    require_same(first.gpu, run.gpu, "GPU");
    require_same(first.engine, run.engine, "engine");
    require_same(first.dtype, run.dtype, "dtype");
    require_same(std::to_string(first.tp), std::to_string(run.tp), "tp");
    num_known += run.measured.mean_tpot_ms > 0;
  }
  if (num_known < kLeastRuns) {
    throw InputError(
        "", fmt::format("{} with a measured TPOT, too few to fit", count_text(num_known, "run")),
        fmt::format("give at least {}, of different loads and max_loras", kLeastRuns));
  }
}

class Fitter {
 public:
  Fitter(std::span<const MeasuredRun> runs, const EngineOf& engine_of,
         const CalibrationOptions& options)
      : runs_(runs), options_(options), simulated_(runs.size()) {
    for (const MeasuredRun& run : runs) {
      engines_.push_back(engine_of(run));
      grids_.push_back(grid_of(engines_.back(), run.max_loras));
    }
    priors_ = step_priors(engines_.front());
    profile_ = prior_profile(engines_.front());
    for (const MeasuredRun& run : runs) {
      for (const int64_t rank : run.ranks)
        profile_.max_rank = std::max(profile_.max_rank, int(rank));
    }
    profile_.server.mean_tokens_to_stop = mean_tokens_to_stop(runs).value;
    forget_what_cannot_be_told();
  }

  void start_at(const Calibration& start) {
    const double stop = profile_.server.mean_tokens_to_stop;
    profile_ = start.profile;
    profile_.server.mean_tokens_to_stop = stop;
  }

  void simulate() {
    run_tasks(std::ssize(runs_), options_.num_threads, [&](int64_t index) {
      const auto i = size_t(index);
      const EngineSpec engine = with_profile(engines_[i], profile_);
      simulated_[i] = options_.from_columns
                          ? column_batches(runs_[i], engine, profile_.server)
                          : simulate_run(runs_[i], engine, profile_.server, options_.seed,
                                         /*sample_steps=*/true);
      options_.on_simulated();
    });
    keep_usable();
  }
  void take_simulated(std::vector<SimulatedRun> simulated) {
    simulated_ = std::move(simulated);
    keep_usable();
  }

  // One round's fit to what was simulated. `damping` 1 = all the way.
  void fit(double damping) {
    fit_steps(damping);
    const ServerFit server = fit_server(runs_, simulated_, profile_.server);
    fitted_server_ = server.terms;
    profile_.server = server.server;
  }

  Calibration result() {
    Calibration out;
    out.profile = profile_;
    const auto add = [&](const ProfileTerm& term, const FittedParameter& fitted, double prior,
                         double sigma) {
      out.terms.push_back(
          {&term, term.in(profile_), fitted.error, prior, sigma, fitted.is_identified});
    };
    for (size_t i = 0; i < step_terms().size(); ++i) {
      add(step_terms()[i], fitted_steps_[i], priors_[i].prior, priors_[i].sigma);
    }
    for (size_t i = 0; i < server_terms().size(); ++i) {
      const FitParameter prior = server_priors()[i];
      add(server_terms()[i], fitted_server_[i], prior.prior, prior.sigma);
    }
    out.simulated = simulated_;
    return out;
  }

 private:
  // Slots that never differ cannot be told from tokens, loads that nobody needed not at all.
  void forget_what_cannot_be_told() {
    std::set<int64_t> slots;
    bool swaps = false;
    for (const MeasuredRun& run : runs_) {
      slots.insert(run.max_loras);
      swaps |= run.num_adapters() > run.max_loras;
    }
    for (size_t i = 0; i < step_terms().size(); ++i) {
      const std::string_view name = step_terms()[i].name;
      const bool is_block = name.starts_with("lora_block_ns");
      if ((is_block && slots.size() == 1) || (name == "load.copy_ns" && !swaps)) fix(priors_[i]);
    }
  }
  static void fix(FitParameter& prior) { prior.low = prior.high = prior.prior; }

  void keep_usable() {
    usable_.clear();
    for (size_t i = 0; i < runs_.size(); ++i) {
      const bool is_measured = runs_[i].measured.mean_tpot_ms > 0;
      if (is_measured && !simulated_[i].steps.empty()) usable_.push_back(i);
    }
  }

  double mean_step_ns(size_t run, const StepProfile& profile) const {
    const ProfileModel model(profile, grids_[run]);
    const std::vector<SampledStep>& steps = simulated_[run].steps;
    const size_t stride = std::max<size_t>(1, steps.size() / kStepsOfRun);
    double sum = 0, num = 0;
    for (size_t i = 0; i < steps.size(); i += stride, ++num) {
      sum += double(model.step_ns(steps[i].shape));
    }
    return sum / num;
  }

  void fit_steps(double damping) {
    std::vector<FitParameter> parameters = priors_;
    for (size_t i = 0; i < parameters.size(); ++i) {
      FitParameter& p = parameters[i];
      p.start = std::clamp(step_terms()[i].in(profile_), p.low, p.high);
    }
    std::vector<double> now(usable_.size());
    for (size_t u = 0; u < usable_.size(); ++u) now[u] = mean_step_ns(usable_[u], profile_);
    const auto residuals = [&](std::span<const double> values, std::span<double> out) {
      StepProfile candidate = profile_;
      for (size_t i = 0; i < values.size(); ++i) step_terms()[i].in(candidate) = values[i];
      for (size_t u = 0; u < usable_.size(); ++u) {
        const SimulatedRun& s = simulated_[usable_[u]];
        const double steps = mean_step_ns(usable_[u], candidate) - now[u];
        const double copies = s.copy_gap_ns * (candidate.copy_ns / profile_.copy_ns - 1);
        const double tpot_ms = s.measures.mean_tpot_ms * (1 + (steps + copies) / s.mean_gap_ns);
        out[u] = tpot_ms / runs_[usable_[u]].measured.mean_tpot_ms - 1;
      }
    };
    fitted_steps_ = fit_bounded(parameters, usable_.size(), kNoise, residuals);
    for (size_t i = 0; i < parameters.size(); ++i) {
      double& value = step_terms()[i].in(profile_);
      const FittedParameter& fitted = fitted_steps_[i];
      value += (fitted.is_identified ? damping : 1) * (fitted.value - value);
    }
  }

  std::span<const MeasuredRun> runs_;
  const CalibrationOptions& options_;
  std::vector<EngineSpec> engines_;
  std::vector<LoraGrid> grids_;
  std::vector<FitParameter> priors_;
  StepProfile profile_;
  std::vector<SimulatedRun> simulated_;
  std::vector<size_t> usable_;  // runs that are measured and start in the simulation
  std::vector<FittedParameter> fitted_steps_, fitted_server_;
};

}  // namespace

Calibration calibrate(std::span<const MeasuredRun> runs, const EngineOf& engine_of,
                      const CalibrationOptions& options, const Calibration* start) {
  require_one_server(runs);
  Fitter fitter(runs, engine_of, options);
  if (start != nullptr) fitter.start_at(*start);
  for (int round = 0; round < options.num_rounds; ++round) {
    fitter.simulate();
    fitter.fit(kDamping);
  }
  fitter.simulate();
  return fitter.result();
}

std::vector<int> folds_of(std::span<const MeasuredRun> runs, int num_folds) {
  std::vector<std::string> sweeps;
  std::vector<int> folds;
  for (const MeasuredRun& run : runs) {
    const auto found = std::ranges::find(sweeps, run.sweep);
    folds.push_back(int((found - sweeps.begin()) % num_folds));
    if (found == sweeps.end()) sweeps.push_back(run.sweep);
  }
  if (std::ssize(sweeps) < num_folds) {
    throw InputError("--folds",
                     fmt::format("{} folds, but the runs are of {}", num_folds,
                                 count_text(std::ssize(sweeps), "sweep")),
                     "lower it; runs of one sweep differ in max_loras alone");
  }
  return folds;
}

CrossValidation cross_validate(std::span<const MeasuredRun> runs, const EngineOf& engine_of,
                               const CalibrationOptions& options, const Calibration& all,
                               int num_folds) {
  CrossValidation out;
  out.num_folds = num_folds;
  out.fold = folds_of(runs, num_folds);
  out.predicted.resize(runs.size());
  for (int fold = 0; fold < num_folds; ++fold) {
    std::vector<MeasuredRun> kept, left_out;
    std::vector<SimulatedRun> simulated;
    for (size_t i = 0; i < runs.size(); ++i) {
      (out.fold[i] == fold ? left_out : kept).push_back(runs[i]);
      if (out.fold[i] != fold) simulated.push_back(all.simulated[i]);
    }
    require_one_server(kept);
    Fitter fitter(kept, engine_of, options);
    fitter.start_at(all);
    fitter.take_simulated(std::move(simulated));
    fitter.fit(kDamping);
    fitter.simulate();
    fitter.fit(kDamping);
    const StepProfile profile = fitter.result().profile;
    out.profiles.push_back(profile);
    const std::vector<PredictedRun> predicted = predict_runs(
        left_out, [&](const MeasuredRun& run) { return with_profile(engine_of(run), profile); },
        profile.server,
        {.seed = options.seed,
         .num_threads = options.num_threads,
         .on_progress = [&](int64_t, int64_t) { options.on_simulated(); }});
    size_t next = 0;
    for (size_t i = 0; i < runs.size(); ++i) {
      if (out.fold[i] == fold) out.predicted[i] = predicted[next++];
    }
  }
  return out;
}

}  // namespace loratory::sim
