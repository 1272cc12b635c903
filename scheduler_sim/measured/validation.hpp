#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler_sim/measured/measured_run.hpp"
#include "scheduler_sim/measured/predict_runs.hpp"

namespace loratory::sim {

/// What predictions are judged by. TTFT in two parts: below kSlowTtftMs measured it is one step or
/// two, and its error is told in ms; above it is a queue.
enum class Quantity : uint8_t {
  throughput,     ///< tokens of prompts and outputs / s
  completed,      ///< requests
  slow_ttft,      ///< mean TTFT above kSlowTtftMs, without the rows in GroupErrors::critical
  all_slow_ttft,  ///< the same with them
  fast_ttft,      ///< mean TTFT up to kSlowTtftMs
  tpot,           ///< mean
  itl,            ///< mean
  kv_tokens,      ///< of servers that start
  weights,        ///< and adapter slots on a GPU
  num_quantities
};
inline constexpr size_t kNumQuantities = size_t(Quantity::num_quantities);

struct QuantityText {
  std::string_view name;   ///< in files: "throughput"
  std::string_view label;  ///< for people: "throughput, tok/s"
  bool is_in_ms;           ///< its errors are differences in ms, not relative
};
const QuantityText& text_of(Quantity quantity);

/// A prediction and what was measured; both are known.
struct ErrorRow {
  size_t run = 0;  ///< its index
  double predicted = 0, measured = 0;
};

/// Of errors: predicted / measured - 1, or predicted - measured in ms. No rows: NaN.
struct ErrorSummary {
  int64_t num_rows = 0;
  double mean_size = RunMeasures::kUnknown;    ///< of |error|: MAPE
  double median_size = RunMeasures::kUnknown;  ///< of |error|
  double bias = RunMeasures::kUnknown;         ///< mean error
  double worst = RunMeasures::kUnknown;        ///< the error of the largest size
  size_t worst_run = 0;                        ///< whose it is
};
ErrorSummary errors_of(std::span<const ErrorRow> rows, bool is_in_ms);

using ErrorsByQuantity = std::array<ErrorSummary, kNumQuantities>;

/// Runs of one model, of one group, or all.
struct GroupErrors {
  std::string name;
  int64_t num_runs = 0;
  ErrorsByQuantity ours, other;
  int64_t num_starts_known = 0;      ///< runs of which it is known whether the server started
  std::vector<size_t> wrong_starts;  ///< those of them where the prediction is wrong
  /// Runs with a measured TTFT above kSlowTtftMs and a utilisation of 0.97 to 1.03, where a percent
  /// of capacity is a multiple of the queue.
  std::vector<size_t> critical;
};

/// The best max_loras of a sweep by what was measured, and what a prediction would have chosen.
struct SweepChoice {
  std::string sweep;
  size_t best = 0;  ///< run
  struct Choice {
    bool is_made = false;
    size_t run = 0;
    double regret = RunMeasures::kUnknown;  ///< 1 - measured throughput of it / of the best
  };
  Choice ours, other;
};

struct Validation {
  GroupErrors all;
  std::vector<GroupErrors> models, groups;  ///< in the order of the runs
  /// Sweeps of two measured runs at least.
  std::vector<SweepChoice> choices;
};

/// Compares `predicted`, one for each run. A run that was skipped, or a figure that is not known,
/// counts nowhere.
Validation validate(std::span<const MeasuredRun> runs, std::span<const PredictedRun> predicted);

/// The figure that a quantity is about; NaN if it is not known.
double value_of(Quantity quantity, const RunMeasures& measures);

/// Whether the measured server started: 1, 0, or -1 = not known.
int measured_start(const MeasuredRun& run);

/// "320 slots, 384 adapters", or "1024 + 128 tokens x 64, tp 2" without adapters.
std::string name_of(const MeasuredRun& run);

}  // namespace loratory::sim
