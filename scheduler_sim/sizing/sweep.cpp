#include "scheduler_sim/sizing/sweep.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "reference/base/check.hpp"
#include "scheduler_sim/sizing/miss_ratio_curve.hpp"
#include "scheduler_sim/sizing/recommend.hpp"

namespace loratory::sim {
namespace {

// Runs task(0) .. task(n-1), in this order of starting, on so many threads (0 = one per core). An
// exception of a task is thrown again here, after the others have ended.
template <typename Task>
void run_tasks(int64_t num_tasks, int num_threads, Task task) {
  std::atomic<int64_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    for (int64_t i = next++; i < num_tasks; i = next++) {
      try {
        task(i);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        failure = std::current_exception();
      }
    }
  };
  const int cores = int(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::jthread> helpers;
  for (int i = 1; i < (num_threads > 0 ? num_threads : cores); ++i) helpers.emplace_back(work);
  work();
  helpers.clear();  // joins
  if (failure) std::rethrow_exception(failure);
}

// Runs of one configuration, one per trace.
struct Row {
  EnginePoint point;
  std::vector<ConfigResult> runs;
};

bool by_size(const Row& a, const Row& b) {
  return std::pair(a.point.max_loras, a.point.max_cpu_loras) <
         std::pair(b.point.max_loras, b.point.max_cpu_loras);
}

class Sweep {
 public:
  Sweep(const std::vector<Trace>& traces, const EngineSpec& engine, const SweepOptions& options)
      : traces_(traces), engine_(engine), options_(options) {}

  // Every new size, as one batch of replays over all cores.
  void run(const std::vector<int32_t>& sizes) {
    const size_t first = rows_.size();
    for (const int32_t size : sizes) {
      for (const int32_t cpu : cpu_sizes(size)) add({size, cpu});
    }
    const auto num_runs = int64_t((rows_.size() - first) * traces_.size());
    total_ += num_runs;
    report();
    run_tasks(num_runs, options_.num_threads, [&](int64_t i) {
      run_one(rows_[first + size_t(i) / traces_.size()], size_t(i) % traces_.size());
    });
    std::ranges::sort(rows_, by_size);
  }

  SizeResult result() const {
    SizeResult out;
    out.slo = options_.slo;
    out.num_seeds = int32_t(traces_.size());
    std::vector<bool> meets;
    for (const Row& row : rows_) {
      out.configs.push_back(median_run(row));
      const auto goodput = range_of(row, &ConfigResult::request_goodput);
      const auto ttft = range_of(row, &ConfigResult::slo_ttft_ms);
      out.goodput_min.push_back(goodput.first), out.goodput_max.push_back(goodput.second);
      out.ttft_min_ms.push_back(ttft.first), out.ttft_max_ms.push_back(ttft.second);
      meets.push_back(std::ranges::all_of(row.runs, &ConfigResult::meets_slo));
    }
    out.recommended = choose(out, meets);
    return out;
  }

 private:
  std::vector<int32_t> cpu_sizes(int32_t max_loras) const {
    std::vector<int32_t> sizes;
    for (const int32_t cpu : options_.max_cpu_loras) {
      if (cpu >= max_loras) sizes.push_back(cpu);
    }
    if (!options_.max_cpu_loras.empty()) return sizes;
    const auto num_adapters = int32_t(traces_.front().adapters.size());
    return {std::max(max_loras, std::min(4 * max_loras, num_adapters))};
  }

  void add(EnginePoint point) {
    const bool known = std::ranges::any_of(rows_, [&](const Row& row) {
      return row.point.max_loras == point.max_loras &&
             row.point.max_cpu_loras == point.max_cpu_loras;
    });
    if (!known) rows_.push_back({point, std::vector<ConfigResult>(traces_.size())});
  }

  void run_one(Row& row, size_t trace) {
    row.runs[trace] = replay(traces_[trace], engine_, row.point, options_.slo).result;
    row.runs[trace].seed = trace;
    ++done_;
    report();
  }

  void report() const {
    if (options_.on_progress) options_.on_progress(done_, total_);
  }

  static ConfigResult median_run(const Row& row) {
    std::vector<const ConfigResult*> runs;
    for (const ConfigResult& run : row.runs) runs.push_back(&run);
    std::ranges::stable_sort(runs, {}, &ConfigResult::request_goodput);
    return *runs[runs.size() / 2];
  }

  static std::pair<double, double> range_of(const Row& row, double ConfigResult::*field) {
    const auto [low, high] = std::ranges::minmax_element(row.runs, {}, field);
    return {(*low).*field, (*high).*field};
  }

  const std::vector<Trace>& traces_;
  const EngineSpec& engine_;
  const SweepOptions& options_;
  std::vector<Row> rows_;
  std::atomic<int64_t> done_ = 0;
  int64_t total_ = 0;
};

// Second round of `auto`: the middles between the best row and its neighbours.
std::vector<int32_t> sizes_around_best(const SizeResult& coarse) {
  const int32_t best = coarse.recommended >= 0 ? coarse.recommended : best_goodput(coarse);
  std::vector<int32_t> sizes;
  if (best < 0) return sizes;
  const int32_t size = coarse.configs[size_t(best)].max_loras;
  const auto middle = [&](size_t other) {
    const int32_t mid = (size + coarse.configs[other].max_loras) / 2;
    if (mid != size && mid != coarse.configs[other].max_loras) sizes.push_back(mid);
  };
  if (best > 0) middle(size_t(best) - 1);
  if (size_t(best) + 1 < coarse.configs.size()) middle(size_t(best) + 1);
  return sizes;
}

// The rows that are drawn, with all they need: the recommended one (or the best) and its
// neighbours, of which only the CDFs are kept.
void add_details(SizeResult& result, int32_t row, int32_t chosen, const std::vector<Trace>& traces,
                 const EngineSpec& engine) {
  if (row < 0 || size_t(row) >= result.configs.size()) return;
  ConfigResult& config = result.configs[size_t(row)];
  if (!config.feasible) return;
  const uint64_t seed = config.seed;
  config = replay(traces[seed], engine, {config.max_loras, config.max_cpu_loras}, result.slo,
                  ReplayDetail::details)
               .result;
  config.seed = seed;
  if (row != chosen) config.timeline.clear(), config.slot_spans.clear(), config.requests.clear();
}

// Where the miss-ratio curves have points: the sizes that auto would try, and those of the rows.
std::vector<int32_t> curve_sizes(const SizeResult& result, const Trace& trace) {
  std::vector<int32_t> sizes = auto_sizes(int64_t(trace.adapters.size()));
  for (const ConfigResult& c : result.configs) sizes.push_back(c.max_loras);
  std::ranges::sort(sizes);
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

}  // namespace

std::vector<int32_t> auto_sizes(int64_t num_adapters) {
  std::vector<int32_t> sizes;
  const auto most = int32_t(std::clamp<int64_t>(num_adapters, 1, 4096));
  for (int32_t size = 1; size < most; size *= 2) sizes.push_back(size);
  sizes.push_back(most);
  return sizes;
}

SizeResult sweep(const std::vector<Trace>& traces, const EngineSpec& engine,
                 const SweepOptions& options) {
  LORATORY_ASSERT(!traces.empty(), "one trace per seed, at least one");
  const bool is_auto = options.max_loras.empty();
  Sweep runs(traces, engine, options);
  runs.run(is_auto ? auto_sizes(int64_t(traces.front().adapters.size())) : options.max_loras);
  if (is_auto) runs.run(sizes_around_best(runs.result()));
  SizeResult result = runs.result();
  const int32_t chosen = result.recommended >= 0 ? result.recommended : best_goodput(result);
  const std::vector<int32_t> sizes = curve_sizes(result, traces.front());
  // Four tasks that write to four places: three rows and the curves.
  run_tasks(4, options.num_threads, [&](int64_t i) {
    if (i < 3 && chosen >= 0) add_details(result, chosen + int32_t(i) - 1, chosen, traces, engine);
    if (i < 3) return;
    const auto references = adapter_references(traces.front());
    if (!references.empty()) result.miss_ratio_curves = miss_ratio_curves(references, sizes);
  });
  result.workload = summarize_workload(traces.front(), engine);
  explain(result);
  return result;
}

}  // namespace loratory::sim
