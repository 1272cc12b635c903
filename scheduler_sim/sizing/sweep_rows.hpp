#pragma once

#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "scheduler_sim/sizing/blame.hpp"
#include "scheduler_sim/sizing/headroom.hpp"
#include "scheduler_sim/sizing/sweep.hpp"

namespace loratory::sim {

/// The configurations of a sweep: replays of each, one per trace, and what is found out about them.
/// Every function works on all cores, and its results depend on neither their number nor their
/// order.
class SweepRows {
 public:
  /// All outlive the rows.
  SweepRows(const std::vector<Trace>& traces, const EngineSpec& engine, const SweepOptions& options)
      : traces_(traces), engine_(engine), options_(options) {}

  /// Replays every size that is new, with its host sizes.
  void replay_sizes(const std::vector<int32_t>& max_loras);
  /// The headroom of every row that fits.
  void find_headrooms();
  /// Why the rows that miss the SLO do.
  void find_causes(const Yardsticks& yardsticks);
  /// Why `row` misses at the first step above its headroom; kind none if it has no such step.
  Bounds find_limit(size_t row, const Yardsticks& yardsticks) const;
  /// Adds the row with the smallest host size that loses nothing to `row`, and returns its index;
  /// rows after it move. `row` itself if there is none.
  size_t shrink_host(size_t row);

  /// A row shows its median seed. Nothing is chosen yet.
  SizeResult result() const;

 private:
  // Runs of one configuration, one per trace.
  struct Row {
    EnginePoint point;
    std::vector<ConfigResult> runs;
    int headroom = kNoStep;
    bool has_headroom = false;
    Cause cause{};  // of the first run that misses
    bool meets() const;
    size_t first_miss() const;  // traces.size() if all meet
  };

  std::vector<int32_t> host_sizes(int32_t max_loras) const;
  void add(EnginePoint point);
  void run_one(Row& row, size_t trace);
  bool meets_at(const Row& row, int step) const;
  /// At a lower rate arrivals would lie past 100 years.
  int lowest_step() const;
  int headroom_of(const Row& row, int hint, int stride) const;
  int hint_for(const std::vector<size_t>& rows, size_t index) const;
  bool loses_nothing(const Row& full, Row& smaller) const;
  void report(int64_t num_done);
  static const ConfigResult& median_run(const Row& row);

  const std::vector<Trace>& traces_;
  const EngineSpec& engine_;
  const SweepOptions& options_;
  std::vector<Row> rows_;
  std::atomic<int64_t> done_ = 0;
  int64_t total_ = 0;
};

}  // namespace loratory::sim
