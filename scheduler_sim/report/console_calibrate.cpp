#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "scheduler_sim/report/calibration_report.hpp"

namespace loratory::sim {
namespace {

std::string number(double value) { return fmt::format("{:.4g}", value); }

// mean_tokens_to_stop: nothing is known before.
std::string prior_of(const CalibratedTerm& term) {
  const double divisor = term.term->divisor;
  if (term.prior == 0) return "-";
  return fmt::format("{} +- {}", number(term.prior / divisor), number(term.sigma / divisor));
}

std::string step_errors(std::string_view whose, const StepErrors& errors) {
  return fmt::format("{:<24}{:>8}{:>9.1f} %{:>9.1f} %{:>+11.1f} %\n", whose, errors.num_steps,
                     100 * errors.median, 100 * errors.p95, 100 * errors.total);
}

}  // namespace

std::string step_fit_console(const StepFit& fit) {
  std::string text = fmt::format("{:<34}{:>9}{:>12}  {}\n", "term", "value", "+-", "unit");
  const auto out = std::back_inserter(text);
  for (const CalibratedTerm& term : fit.terms) {
    const double divisor = term.term->divisor;
    const std::string error = term.is_identified ? number(term.error / divisor) : "not told";
    fmt::format_to(out, "{:<34}{:>9}{:>12}  {}\n", term.term->name, number(term.value / divisor),
                   error, term.term->unit);
  }
  text += fmt::format("\n{:<24}{:>8}{:>11}{:>11}{:>13}\n", "error of a step", "steps", "median",
                      "p95", "all of them");
  return text + step_errors("fitted", fit.fitted) + step_errors("held traces", fit.held);
}

std::string calibration_console(const Calibration& calibration) {
  std::string text =
      fmt::format("{:<34}{:>9}{:>12}  {:<7} {}\n", "term", "value", "+-", "unit", "before");
  const auto out = std::back_inserter(text);
  for (const CalibratedTerm& term : calibration.terms) {
    const double divisor = term.term->divisor;
    const std::string error = term.is_identified ? number(term.error / divisor) : "not told";
    fmt::format_to(out, "{:<34}{:>9}{:>12}  {:<7} {}\n", term.term->name,
                   number(term.value / divisor), error, term.term->unit, prior_of(term));
  }
  const auto is_unknown = [](const CalibratedTerm& term) { return !term.is_identified; };
  if (std::ranges::any_of(calibration.terms, is_unknown)) {
    text += "not told: these runs do not say; the term stays at what was known before.\n";
  }
  return text;
}

}  // namespace loratory::sim
