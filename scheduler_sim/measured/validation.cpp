#include "scheduler_sim/measured/validation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace loratory::sim {
namespace {

bool is_slow(const MeasuredRun& run) { return run.measured.mean_ttft_ms > kSlowTtftMs; }

bool is_critical(const MeasuredRun& run, const PredictedRun& predicted) {
  return is_slow(run) && predicted.utilisation >= kLeastCritical &&
         predicted.utilisation <= kMostCritical;
}

// Whether the run counts for this quantity, if both figures are known.
bool counts(Quantity quantity, const MeasuredRun& run, const PredictedRun& predicted) {
  if (quantity == Quantity::slow_ttft) return is_slow(run) && !is_critical(run, predicted);
  if (quantity == Quantity::all_slow_ttft) return is_slow(run);
  if (quantity == Quantity::fast_ttft) return !is_slow(run);
  return true;
}

// The runs of a table, each with its prediction.
struct Rows {
  std::span<const MeasuredRun> runs;
  std::span<const PredictedRun> predicted;

  ErrorSummary errors(std::span<const size_t> members, Quantity quantity, bool of_other) const {
    std::vector<ErrorRow> rows;
    for (const size_t i : members) {
      if (!counts(quantity, runs[i], predicted[i])) continue;
      const RunMeasures& by = of_other ? runs[i].other : predicted[i].measures;
      const double value = value_of(quantity, by);
      const double measured = value_of(quantity, runs[i].measured);
      if (std::isfinite(value) && measured > 0) rows.push_back({i, value, measured});
    }
    return errors_of(rows, text_of(quantity).is_in_ms);
  }

  GroupErrors group(std::string name, std::span<const size_t> members) const {
    GroupErrors g;
    g.name = std::move(name);
    g.num_runs = std::ssize(members);
    for (size_t q = 0; q < kNumQuantities; ++q) {
      g.ours[q] = errors(members, Quantity(q), /*of_other=*/false);
      g.other[q] = errors(members, Quantity(q), /*of_other=*/true);
    }
    for (const size_t i : members) {
      const int start = measured_start(runs[i]);
      g.num_starts_known += start >= 0 ? 1 : 0;
      if (start >= 0 && (start == 1) != predicted[i].starts()) g.wrong_starts.push_back(i);
      if (is_critical(runs[i], predicted[i])) g.critical.push_back(i);
    }
    return g;
  }
};

struct Members {
  std::string name;
  std::vector<size_t> runs;
};

// The runs that were simulated, by what `name` says of them, in order of appearance.
std::vector<Members> grouped(const Rows& rows, std::string MeasuredRun::*name) {
  std::vector<Members> all;
  for (size_t i = 0; i < rows.runs.size(); ++i) {
    if (!rows.predicted[i].skip.empty()) continue;
    const std::string& own = rows.runs[i].*name;
    auto found = std::ranges::find(all, own, &Members::name);
    if (found == all.end()) found = all.insert(all.end(), {own, {}});
    found->runs.push_back(i);
  }
  return all;
}

// What the client would have got from the run: nothing from a server that does not start.
double measured_tps(const MeasuredRun& run) {
  return measured_start(run) == 0 ? 0 : run.measured.total_tps();
}

// The run that comes out best; of equals the first, which has the fewest slots.
SweepChoice::Choice best_of(std::span<const size_t> members,
                            const std::function<double(size_t)>& throughput) {
  SweepChoice::Choice choice;
  for (const size_t i : members) {
    if (!std::isfinite(throughput(i))) continue;
    if (choice.is_made && throughput(i) <= throughput(choice.run)) continue;
    choice.is_made = true;
    choice.run = i;
  }
  return choice;
}

bool choose(const Rows& rows, const Members& sweep, SweepChoice& out) {
  std::vector<size_t> members;
  for (const size_t i : sweep.runs) {
    if (std::isfinite(measured_tps(rows.runs[i]))) members.push_back(i);
  }
  std::ranges::stable_sort(members, {}, [&](size_t i) { return rows.runs[i].max_loras; });
  const auto tps_of = [&](size_t i) { return measured_tps(rows.runs[i]); };
  if (sweep.name.empty() || members.size() < 2) return false;
  out.sweep = sweep.name;
  out.best = best_of(members, tps_of).run;
  if (!(tps_of(out.best) > 0)) return false;
  out.ours = best_of(members, [&](size_t i) { return rows.predicted[i].measures.total_tps(); });
  out.other = best_of(members, [&](size_t i) { return rows.runs[i].other.total_tps(); });
  for (SweepChoice::Choice* choice : {&out.ours, &out.other}) {
    if (choice->is_made) choice->regret = 1 - tps_of(choice->run) / tps_of(out.best);
  }
  return true;
}

}  // namespace

const QuantityText& text_of(Quantity quantity) {
  static constexpr std::array<QuantityText, kNumQuantities> kTexts{{
      {"throughput", "throughput, tok/s", false},
      {"completed", "completed requests", false},
      {"slow_ttft", "TTFT > 200 ms", false},
      {"all_slow_ttft", "  with critical ones", false},
      {"fast_ttft", "TTFT <= 200 ms", true},
      {"tpot", "TPOT", false},
      {"itl", "ITL", false},
      {"kv_tokens", "KV tokens", false},
      {"weights", "weights and slots", false},
  }};
  return kTexts[size_t(quantity)];
}

double value_of(Quantity quantity, const RunMeasures& m) {
  switch (quantity) {
    case Quantity::throughput:
      return m.total_tps();
    case Quantity::completed:
      return m.completed;
    case Quantity::slow_ttft:
    case Quantity::all_slow_ttft:
    case Quantity::fast_ttft:
      return m.mean_ttft_ms;
    case Quantity::tpot:
      return m.mean_tpot_ms;
    case Quantity::itl:
      return m.mean_itl_ms;
    case Quantity::kv_tokens:
      return m.kv_tokens;
    case Quantity::weights:
      return m.weights_gib;
    case Quantity::num_quantities:
      break;
  }
  return RunMeasures::kUnknown;
}

ErrorSummary errors_of(std::span<const ErrorRow> rows, bool is_in_ms) {
  ErrorSummary e;
  e.num_rows = std::ssize(rows);
  if (rows.empty()) return e;
  std::vector<double> sizes;
  double sum = 0, sum_of_sizes = 0;
  for (const ErrorRow& row : rows) {
    const double error = is_in_ms ? row.predicted - row.measured : row.predicted / row.measured - 1;
    sum += error;
    sum_of_sizes += std::fabs(error);
    if (sizes.empty() || std::fabs(error) > std::fabs(e.worst)) {
      e.worst = error;
      e.worst_run = row.run;
    }
    sizes.push_back(std::fabs(error));
  }
  std::ranges::sort(sizes);
  const size_t half = sizes.size() / 2;
  e.median_size = sizes.size() % 2 == 1 ? sizes[half] : (sizes[half - 1] + sizes[half]) / 2;
  e.mean_size = sum_of_sizes / double(rows.size());
  e.bias = sum / double(rows.size());
  return e;
}

Validation validate(std::span<const MeasuredRun> runs, std::span<const PredictedRun> predicted) {
  const Rows rows{runs, predicted};
  Validation validation;
  std::vector<size_t> all;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (predicted[i].skip.empty()) all.push_back(i);
  }
  validation.all = rows.group("all", all);
  for (const Members& m : grouped(rows, &MeasuredRun::model)) {
    validation.models.push_back(rows.group(m.name, m.runs));
  }
  for (const Members& m : grouped(rows, &MeasuredRun::group)) {
    validation.groups.push_back(rows.group(m.name, m.runs));
  }
  for (const Members& m : grouped(rows, &MeasuredRun::sweep)) {
    SweepChoice choice;
    if (choose(rows, m, choice)) validation.choices.push_back(choice);
  }
  return validation;
}

int measured_start(const MeasuredRun& run) {
  if (run.measured.kv_tokens == 0) return 0;
  const RunMeasures& m = run.measured;
  const bool served = m.kv_tokens > 0 || m.completed > 0 || m.mean_ttft_ms > 0;
  return served ? 1 : -1;
}

std::string name_of(const MeasuredRun& run) {
  if (run.max_loras > 0) {
    return run.num_adapters() == 0
               ? fmt::format("{} slots", run.max_loras)
               : fmt::format("{} slots, {} adapters", run.max_loras, run.num_adapters());
  }
  std::string name =
      fmt::format("{:.0f} + {:.0f} tokens", run.mean_prompt_tokens, run.mean_output_tokens);
  if (run.client.concurrency > 0) name += fmt::format(" x {}", run.client.concurrency);
  if (run.tp > 1) name += fmt::format(", tp {}", run.tp);
  return name;
}

}  // namespace loratory::sim
