#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "reference/base/escape.hpp"
#include "reference/base/units.hpp"
#include "scheduler_sim/report/format.hpp"
#include "scheduler_sim/report/validation_report.hpp"

namespace loratory::sim {
namespace {

constexpr double kVisibleRegret = 0.001;
constexpr double kFarOff = 1;  // from here on a tenth of a percent says nothing

class Text {
 public:
  explicit Text(const ValidationReport& report) : report_(report) {}

  std::string take() {
    head();
    for (const GroupErrors& model : report_.errors.models) errors(model);
    if (report_.errors.models.size() > 1) errors(report_.errors.all);
    groups();
    choices();
    named_runs();
    skipped();
    return std::move(text_);
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }

  const MeasuredRun& run(size_t index) const { return report_.table.runs[index]; }
  bool has_other() const {
    return std::ranges::any_of(report_.errors.all.other,
                               [](const ErrorSummary& e) { return e.num_rows > 0; });
  }

  void head() {
    add("measured    {}: {}, {} simulated\n", printable(report::clip(report_.table.source, 60)),
        count_text(std::ssize(report_.table.runs) + std::ssize(report_.table.skipped), "run"),
        report_.errors.all.num_runs);
    for (const std::string& times : report_.step_times) {
      add("step times  {}\n", printable(report::clip(times, 88)));
    }
    add("seed        {}\n", report_.provenance.seed);
  }

  void errors(const GroupErrors& group) {
    add("\n{:<20}{:>5}{:>8}{:>8}{:>9}{:>10}{:>9}  {}\n", printable(report::clip(group.name, 19)),
        "runs", "mean", "median", "bias", "worst", has_other() ? "other" : "", "worst, by line");
    for (size_t q = 0; q < kNumQuantities; ++q) {
      const ErrorSummary& e = group.ours[q];
      if (e.num_rows == 0 || is_repeated(group, Quantity(q))) continue;
      row(text_of(Quantity(q)), e, group.other[q]);
    }
    if (group.num_starts_known == 0) return;
    const auto right = group.num_starts_known - std::ssize(group.wrong_starts);
    add("{:<20}{:>5}{:>8} right\n", "starts", group.num_starts_known,
        format_percent(double(right) / double(group.num_starts_known)));
  }

  void row(const QuantityText& quantity, const ErrorSummary& e, const ErrorSummary& other) {
    const bool in_ms = quantity.is_in_ms;
    add("{:<20}{:>5}{:>8}{:>8}{:>9}{:>10}{:>9}  ", quantity.label, e.num_rows,
        error_size_text(e.mean_size, in_ms), error_size_text(e.median_size, in_ms),
        error_text(e.bias, in_ms), error_text(e.worst, in_ms),
        other.num_rows > 0 ? error_size_text(other.mean_size, in_ms) : "");
    const MeasuredRun& worst = run(e.worst_run);
    add("{}\n", report::clip(fmt::format("{}: {}", line_number(worst), name_of(worst)), 29));
  }

  void groups() {
    if (report_.errors.groups.size() < 2) return;
    add("\n{:<38}{:>5}{:>9}{:>9}{:>9}{:>9}{:>10}{:>9}\n", "mean error by group", "runs", "tok/s",
        "requests", "ITL", "TPOT", "TTFT>.2 s", "TTFT<");
    for (const GroupErrors& g : report_.errors.groups) {
      const auto mean = [&](Quantity q) {
        return error_size_text(g.ours[size_t(q)].mean_size, text_of(q).is_in_ms);
      };
      add("{:<38}{:>5}{:>9}{:>9}{:>9}{:>9}{:>10}{:>9}\n", printable(report::clip(g.name, 37)),
          g.num_runs, mean(Quantity::throughput), mean(Quantity::completed), mean(Quantity::itl),
          mean(Quantity::tpot), mean(Quantity::slow_ttft), mean(Quantity::fast_ttft));
    }
  }

  void choices() {
    if (report_.errors.choices.empty()) return;
    const auto summary = [&](SweepChoice::Choice SweepChoice::*whose) {
      const Regret regret = regret_of(report_.errors, whose);
      return fmt::format("mean {}, worst {}", regret_text(regret.mean), regret_text(regret.worst));
    };
    add("\nbest max_loras of {}: the prediction's choice loses {}",
        count_text(std::ssize(report_.errors.choices), "sweep"), summary(&SweepChoice::ours));
    if (regret_of(report_.errors, &SweepChoice::other).num_sweeps > 0) {
      add("\n{:>30}the other predictor's {}", "", summary(&SweepChoice::other));
    }
    add("\n");
    for (const SweepChoice& choice : report_.errors.choices) {
      if (!(choice.ours.regret > kVisibleRegret)) continue;
      add("  {:<60} best {:>4}, chosen {:>4}: {:>8}\n", printable(report::clip(choice.sweep, 60)),
          run(choice.best).max_loras, run(choice.ours.run).max_loras,
          regret_text(choice.ours.regret));
    }
  }

  void named_runs() {
    const GroupErrors& all = report_.errors.all;
    if (!all.critical.empty()) {
      add("\ncritical: within 3 % of their capacity, where a percent of it is a multiple of the "
          "queue\n");
    }
    for (const size_t i : all.critical) {
      add("  line {:<5}{:<30} utilisation {:.3f}, TTFT {} for {}\n", line_number(run(i)),
          name_of(run(i)), report_.predicted[i].utilisation,
          format_ms(report_.predicted[i].measures.mean_ttft_ms),
          format_ms(run(i).measured.mean_ttft_ms));
    }
    if (!all.wrong_starts.empty()) add("\nwrong about the start\n");
    for (const size_t i : all.wrong_starts) {
      add("  line {:<5}{:<30} {}, and it {}\n", line_number(run(i)), name_of(run(i)),
          report_.predicted[i].starts() ? "should start" : "should not start",
          measured_start(run(i)) == 1 ? "did" : "did not");
    }
  }

  void skipped() {
    const std::vector<SkippedRows> rows = skipped_rows(report_);
    if (!rows.empty()) add("\nskipped\n");
    for (const SkippedRows& r : rows) add("  {:>5}  {}\n", r.num_rows, printable(r.reason));
  }

  const ValidationReport& report_;
  std::string text_;
};

}  // namespace

std::vector<SkippedRows> skipped_rows(const ValidationReport& report) {
  std::vector<SkippedRows> rows;
  const auto count = [&](const std::string& reason) {
    if (reason.empty()) return;
    auto found = std::ranges::find(rows, reason, &SkippedRows::reason);
    if (found == rows.end()) found = rows.insert(rows.end(), {reason, 0});
    ++found->num_rows;
  };
  for (const SkippedRow& row : report.table.skipped) count(row.reason);
  for (const PredictedRun& run : report.predicted) count(run.skip);
  return rows;
}

Regret regret_of(const Validation& errors, SweepChoice::Choice SweepChoice::*whose) {
  Regret regret;
  double sum = 0;
  for (const SweepChoice& choice : errors.choices) {
    const double lost = (choice.*whose).regret;
    if (!std::isfinite(lost)) continue;
    ++regret.num_sweeps;
    sum += lost;
    regret.worst = regret.num_sweeps == 1 ? lost : std::max(regret.worst, lost);
  }
  if (regret.num_sweeps > 0) regret.mean = sum / double(regret.num_sweeps);
  return regret;
}

bool is_repeated(const GroupErrors& group, Quantity quantity) {
  return quantity == Quantity::all_slow_ttft && group.critical.empty();
}

std::string error_size_text(double size, bool is_in_ms) {
  if (!std::isfinite(size)) return "-";
  if (is_in_ms) return fmt::format("{:.1f} ms", size);
  return fmt::format("{:.{}f} %", 100 * size, size < kFarOff ? 1 : 0);
}

std::string error_text(double error, bool is_in_ms) {
  if (!std::isfinite(error)) return "-";
  if (is_in_ms) return fmt::format("{:+.1f} ms", error);
  return fmt::format("{:+.{}f} %", 100 * error, std::fabs(error) < kFarOff ? 1 : 0);
}

std::string regret_text(double regret) {
  return std::isfinite(regret) ? fmt::format("{:.2f} %", 100 * regret) : "-";
}

std::string line_number(const MeasuredRun& run) {
  return run.place.substr(run.place.rfind(':') + 1);
}

std::string validation_console(const ValidationReport& report) { return Text(report).take(); }

}  // namespace loratory::sim
