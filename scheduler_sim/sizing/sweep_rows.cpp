#include "scheduler_sim/sizing/sweep_rows.hpp"

#include <algorithm>
#include <bit>

#include "scheduler_sim/sizing/recommend.hpp"
#include "scheduler_sim/sizing/tasks.hpp"
#include "scheduler_sim/workload/arrivals.hpp"

namespace loratory::sim {
namespace {

// Replays that a search costs about, for the progress alone.
constexpr int64_t kHeadroomReplays = 8, kCauseReplays = 4;

constexpr double kSameTtft = 1.05;

constexpr int kFirstStride = 8, kNextStride = 2;

std::pair<double, double> range_of(const std::vector<ConfigResult>& runs,
                                   double ConfigResult::*field) {
  const auto [low, high] = std::ranges::minmax_element(runs, {}, field);
  return {(*low).*field, (*high).*field};
}

// 0 .. n-1 in batches: the first, the middle, the quarters, ... so that each has a neighbour in an
// earlier batch, whatever runs at the same time.
std::vector<std::vector<size_t>> by_halves(size_t n) {
  std::vector<std::vector<size_t>> batches;
  for (size_t width = std::bit_ceil(std::max<size_t>(1, n)); width >= 1; width /= 2) {
    std::vector<size_t> batch;
    for (size_t i = 0; i < n; i += width) {
      if (batches.empty() || i % (2 * width) != 0) batch.push_back(i);
    }
    batches.push_back(batch);
  }
  return batches;
}

}  // namespace

bool SweepRows::Row::meets() const { return first_miss() == runs.size(); }

size_t SweepRows::Row::first_miss() const {
  return size_t(std::ranges::find(runs, false, &ConfigResult::meets_slo) - runs.begin());
}

void SweepRows::report(int64_t num_done) {
  done_ += num_done;
  if (options_.on_progress) options_.on_progress(done_, total_);
}

// --- replays --------------------------------------------------------------------------------

std::vector<int32_t> SweepRows::host_sizes(int32_t max_loras) const {
  if (options_.max_cpu_loras.empty()) {
    return {most_host_places(engine_, std::ssize(traces_.front().adapters), max_loras)};
  }
  std::vector<int32_t> sizes;
  for (const int32_t cpu : options_.max_cpu_loras) {
    if (cpu >= max_loras) sizes.push_back(cpu);
  }
  return sizes;
}

void SweepRows::add(EnginePoint point) {
  const bool known = std::ranges::any_of(rows_, [&](const Row& row) {
    return row.point.max_loras == point.max_loras && row.point.max_cpu_loras == point.max_cpu_loras;
  });
  if (!known) rows_.push_back({.point = point, .runs = std::vector<ConfigResult>(traces_.size())});
}

void SweepRows::run_one(Row& row, size_t trace) {
  row.runs[trace] = replay(traces_[trace], engine_, row.point, options_.slo).result;
  row.runs[trace].seed = trace;
}

void SweepRows::replay_sizes(const std::vector<int32_t>& max_loras) {
  const size_t first = rows_.size();
  for (const int32_t size : max_loras) {
    for (const int32_t cpu : host_sizes(size)) add({size, cpu});
  }
  const auto num_runs = int64_t((rows_.size() - first) * traces_.size());
  total_ += num_runs;
  report(0);
  run_tasks(num_runs, options_.num_threads, [&](int64_t i) {
    run_one(rows_[first + size_t(i) / traces_.size()], size_t(i) % traces_.size());
    report(1);
  });
  std::ranges::sort(rows_, {}, [](const Row& row) {
    return std::pair(row.point.max_loras, row.point.max_cpu_loras);
  });
}

// --- headroom -------------------------------------------------------------------------------

bool SweepRows::meets_at(const Row& row, int step) const {
  if (step == 0) return row.meets();
  const double factor = rate_factor(step);
  return std::ranges::all_of(traces_, [&](const Trace& trace) {
    return would_meet(at_rate(trace, factor), engine_, row.point, options_.slo);
  });
}

int SweepRows::lowest_step() const {
  int step = -kMostStep;
  const auto fit = [&] {
    return std::ranges::all_of(
        traces_, [&](const Trace& trace) { return fits_at_rate(trace, rate_factor(step)); });
  };
  while (step < 0 && !fit()) ++step;
  return step;
}

int SweepRows::headroom_of(const Row& row, int hint, int stride) const {
  hint = row.meets() ? std::max(0, hint) : std::min(-1, hint);
  return largest_step([&](int step) { return meets_at(row, step); }, hint, stride, lowest_step());
}

// What the nearest row has that is done; the smaller one of two.
int SweepRows::hint_for(const std::vector<size_t>& rows, size_t index) const {
  for (size_t distance = 1; distance < rows.size(); ++distance) {
    for (const size_t at : {index - distance, index + distance}) {
      if (at < rows.size() && rows_[rows[at]].has_headroom) return rows_[rows[at]].headroom;
    }
  }
  return 0;
}

void SweepRows::find_headrooms() {
  std::vector<size_t> rows;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].runs.front().feasible && rows_[i].runs.front().failed == 0) rows.push_back(i);
  }
  const int64_t cost = kHeadroomReplays * std::ssize(traces_);
  total_ += cost * std::ssize(rows);
  for (const std::vector<size_t>& batch : by_halves(rows.size())) {
    std::vector<int> found(batch.size());
    run_tasks(std::ssize(batch), options_.num_threads, [&](int64_t i) {
      const size_t index = batch[size_t(i)];
      const int stride = index == 0 ? kFirstStride : kNextStride;
      found[size_t(i)] = headroom_of(rows_[rows[index]], hint_for(rows, index), stride);
      report(cost);
    });
    for (size_t i = 0; i < batch.size(); ++i) {
      rows_[rows[batch[i]]].headroom = found[i];
      rows_[rows[batch[i]]].has_headroom = true;
    }
  }
}

// --- causes ---------------------------------------------------------------------------------

void SweepRows::find_causes(const Yardsticks& yardsticks) {
  std::vector<Row*> missed;
  for (Row& row : rows_) {
    if (row.runs.front().feasible && !row.meets()) missed.push_back(&row);
  }
  total_ += kCauseReplays * std::ssize(missed);
  run_tasks(std::ssize(missed), options_.num_threads, [&](int64_t i) {
    Row& row = *missed[size_t(i)];
    const ConfigResult& shown = median_run(row);
    const size_t seed = shown.meets_slo ? row.first_miss() : size_t(shown.seed);
    row.cause = find_cause(traces_[seed], engine_, row.runs[seed], options_.slo, yardsticks);
    report(kCauseReplays);
  });
}

Bounds SweepRows::find_limit(size_t index, const Yardsticks& yardsticks) const {
  const Row& row = rows_[index];
  Bounds bounds{.base = yardsticks.base, .resident = yardsticks.resident};
  if (!row.has_headroom || row.headroom == kNoStep || row.headroom == kMostStep) return bounds;
  bounds.limit_factor = rate_factor(row.headroom + 1);
  for (const Trace& trace : traces_) {
    const Trace faster = at_rate(trace, bounds.limit_factor);
    const ConfigResult result = replay(faster, engine_, row.point, options_.slo).result;
    if (result.meets_slo) continue;
    const Yardsticks there = measure_yardsticks(faster, engine_, options_.slo);
    bounds.limit = find_cause(faster, engine_, result, options_.slo, there);
    return bounds;
  }
  return bounds;
}

// --- the host -------------------------------------------------------------------------------

bool SweepRows::loses_nothing(const Row& full, Row& smaller) const {
  const auto seeds = std::ssize(traces_);
  const int step = full.has_headroom ? std::max(full.headroom - 1, lowest_step()) : 0;
  const Trace* first = traces_.data();
  std::vector<char> keeps_headroom(traces_.size(), 1);
  run_tasks(2 * seeds, options_.num_threads, [&](int64_t i) {
    const auto seed = size_t(i % seeds);
    ConfigResult& run = smaller.runs[seed];
    if (i < seeds) {
      run = replay(first[seed], engine_, smaller.point, options_.slo).result;
      run.seed = seed;
    } else if (step != 0) {
      keeps_headroom[seed] =
          would_meet(at_rate(first[seed], rate_factor(step)), engine_, smaller.point, options_.slo);
    }
  });
  const ConfigResult &less = median_run(smaller), &more = median_run(full);
  return smaller.meets() && std::ranges::count(keeps_headroom, 0) == 0 &&
         less.request_goodput >= kGoodputShare * more.request_goodput &&
         less.slo_ttft_ms <= kSameTtft * more.slo_ttft_ms &&
         less.ttft.p50_ms <= kSameTtft * more.ttft.p50_ms;
}

size_t SweepRows::shrink_host(size_t index) {
  const Row& full = rows_[index];
  std::vector<int32_t> sizes;
  for (int64_t size = full.point.max_loras; size < full.point.max_cpu_loras; size *= 2) {
    sizes.push_back(int32_t(size));
  }
  std::optional<Row> found;
  for (size_t low = 0, high = sizes.size(); low < high;) {
    const size_t middle = (low + high) / 2;
    Row row{.point = {full.point.max_loras, sizes[middle]},
            .runs = std::vector<ConfigResult>(traces_.size())};
    const bool enough = loses_nothing(full, row);
    (enough ? high : low) = enough ? middle : middle + 1;
    if (enough) found = std::move(row);
  }
  if (!found) return index;
  found->has_headroom = full.has_headroom;
  if (full.has_headroom) found->headroom = headroom_of(*found, full.headroom, 1);
  rows_.insert(rows_.begin() + std::ptrdiff_t(index), std::move(*found));
  return index;
}

// --- the result -----------------------------------------------------------------------------

const ConfigResult& SweepRows::median_run(const Row& row) {
  std::vector<const ConfigResult*> runs;
  for (const ConfigResult& run : row.runs) runs.push_back(&run);
  std::ranges::stable_sort(runs, {}, &ConfigResult::request_goodput);
  return *runs[runs.size() / 2];
}

SizeResult SweepRows::result() const {
  SizeResult out;
  out.slo = options_.slo;
  out.choice = options_.choice;
  out.num_seeds = int32_t(traces_.size());
  out.workload = summarize_workload(traces_.front(), engine_);
  for (const Row& row : rows_) {
    ConfigResult shown = median_run(row);
    shown.num_seeds = out.num_seeds;
    shown.num_seeds_met = int32_t(std::ranges::count(row.runs, true, &ConfigResult::meets_slo));
    shown.meets_slo = row.meets();
    if (row.cause.kind != CauseKind::none) shown.cause = row.cause;
    if (row.has_headroom) shown.headroom = rate_factor(row.headroom);
    out.configs.push_back(std::move(shown));
    const auto goodput = range_of(row.runs, &ConfigResult::request_goodput);
    const auto ttft = range_of(row.runs, &ConfigResult::slo_ttft_ms);
    out.goodput_min.push_back(goodput.first), out.goodput_max.push_back(goodput.second);
    out.ttft_min_ms.push_back(ttft.first), out.ttft_max_ms.push_back(ttft.second);
    out.tpot_max_ms.push_back(range_of(row.runs, &ConfigResult::slo_tpot_ms).second);
  }
  return out;
}

}  // namespace loratory::sim
