#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ostream>
#include <sstream>

#include "reference/base/units.hpp"
#include "scheduler_sim/report/format.hpp"
#include "scheduler_sim/report/html/assets.hpp"
#include "scheduler_sim/report/html/markup.hpp"
#include "scheduler_sim/report/html/scatter.hpp"
#include "scheduler_sim/report/html/sections.hpp"
#include "scheduler_sim/report/validation_report.hpp"

namespace loratory::sim {
namespace {

constexpr int kMostStyles = 5;

// A quantity as a column of the table of runs, and as a chart.
struct Shown {
  Quantity quantity;
  const char* id;
  const char* title;
  const char* column;
  const char* unit;
  report::NumberFormat format;
};

const auto kShown = std::to_array<Shown>({
    {Quantity::throughput, "throughput", "Throughput", "tok/s", "tok/s", format_number},
    {Quantity::completed, "completed", "Completed requests", "requests", "requests", format_number},
    {Quantity::itl, "itl", "Time between tokens (ITL)", "ITL", "mean", format_ms},
    {Quantity::tpot, "tpot", "Time per output token (TPOT)", "TPOT", "mean", format_ms},
    {Quantity::all_slow_ttft, "ttft", "Time to first token (TTFT)", "TTFT", "mean", format_ms},
    {Quantity::kv_tokens, "kv-tokens", "KV cache", "KV", "tokens", format_number},
});

// What a run of the page is: its figures as far as both are known.
struct Pair {
  double predicted = RunMeasures::kUnknown, measured = RunMeasures::kUnknown;
  bool is_known() const { return predicted > 0 && measured > 0; }
  double error() const { return predicted / measured - 1; }
};

Pair pair_of(const ValidationReport& report, size_t run, Quantity quantity) {
  if (!report.predicted[run].skip.empty()) return {};
  return {value_of(quantity, report.predicted[run].measures),
          value_of(quantity, report.table.runs[run].measured)};
}

int style_of(const ValidationReport& report, const MeasuredRun& run) {
  const auto& models = report.errors.models;
  const auto found = std::ranges::find(models, run.model, &GroupErrors::name);
  return int((found - models.begin()) % kMostStyles) + 1;
}

const ErrorSummary& of_all(const ValidationReport& report, Quantity quantity) {
  return report.errors.all.ours[size_t(quantity)];
}

// --- the head of the page ------------------------------------------------------------------------

std::string heading(const ValidationReport& report) {
  for (const Quantity q : {Quantity::throughput, Quantity::tpot, Quantity::kv_tokens}) {
    const ErrorSummary& e = of_all(report, q);
    if (e.num_rows == 0) continue;
    const char* what = q == Quantity::throughput ? "Throughput"
                       : q == Quantity::tpot     ? "TPOT"
                                                 : "KV tokens";
    return fmt::format("{} is <em>{}</em> off on average", what,
                       error_size_text(e.mean_size, false));
  }
  return "No run could be compared";
}

std::string worst_sentence(const ValidationReport& report) {
  const ErrorSummary& e = of_all(report, Quantity::throughput);
  if (e.num_rows == 0) return "";
  const MeasuredRun& run = report.table.runs[e.worst_run];
  return fmt::format("{} in throughput: {}, {} (line {})", error_text(e.worst, false), run.group,
                     name_of(run), line_number(run));
}

std::string choice_sentence(const ValidationReport& report) {
  const Regret regret = regret_of(report.errors, &SweepChoice::ours);
  if (regret.num_sweeps == 0) return "";
  return fmt::format(
      "max_loras chosen by the prediction loses {} of the measured throughput on average, {} at "
      "worst, over {}",
      regret_text(regret.mean), regret_text(regret.worst), count_text(regret.num_sweeps, "sweep"));
}

std::string skipped_sentence(const ValidationReport& report) {
  std::string words;
  for (const SkippedRows& rows : skipped_rows(report)) {
    words += fmt::format("{}{}: {}", words.empty() ? "" : "; ", rows.num_rows, rows.reason);
  }
  return words;
}

std::string sentences(const ValidationReport& report) {
  std::string html = "<dl class=\"say\">";
  const auto say = [&](const char* label, const std::string& words) {
    if (!words.empty()) html += fmt::format("<dt>{}</dt><dd>{}</dd>\n", label, html_name(words));
  };
  say("Worst", worst_sentence(report));
  say("Choice", choice_sentence(report));
  for (const std::string& times : report.step_times) say("Step times", times);
  say("Skipped", skipped_sentence(report));
  return html + "</dl>\n";
}

std::string tile(const char* label, const std::string& value, const std::string& note) {
  return fmt::format("<div><dt>{}</dt><dd>{}<small>{}</small></dd></div>\n", label,
                     html_text(value), html_text(note));
}

std::string error_tile(const ValidationReport& report, const char* label, Quantity quantity) {
  const ErrorSummary& e = of_all(report, quantity);
  const ErrorSummary& other = report.errors.all.other[size_t(quantity)];
  if (e.num_rows == 0) return "";
  const bool in_ms = text_of(quantity).is_in_ms;
  std::string note = fmt::format("mean of {}", count_text(e.num_rows, "run"));
  if (other.num_rows > 0) {
    note += fmt::format("; other {}", error_size_text(other.mean_size, in_ms));
  }
  return tile(label, error_size_text(e.mean_size, in_ms), note);
}

std::string tiles(const ValidationReport& report) {
  const GroupErrors& all = report.errors.all;
  std::string html = "<dl class=\"tiles\">\n";
  html += error_tile(report, "Throughput", Quantity::throughput);
  html += error_tile(report, "Completed requests", Quantity::completed);
  html += error_tile(report, "ITL", Quantity::itl);
  html += error_tile(report, "TPOT", Quantity::tpot);
  html += error_tile(report, "TTFT above 200 ms", Quantity::slow_ttft);
  html += error_tile(report, "TTFT up to 200 ms", Quantity::fast_ttft);
  html += error_tile(report, "KV tokens", Quantity::kv_tokens);
  if (all.num_starts_known > 0) {
    html += tile("Starts",
                 fmt::format("{} of {}", all.num_starts_known - std::ssize(all.wrong_starts),
                             all.num_starts_known),
                 "right about whether it starts");
  }
  return html + "</dl>\n";
}

// --- tables --------------------------------------------------------------------------------------

std::string errors_section(const ValidationReport& report) {
  report::DataTable table{{"model or group", "of", "runs", "mean", "median", "bias", "worst",
                           "other's mean", "worst run"},
                          {}};
  const auto add = [&](const GroupErrors& group) {
    for (size_t q = 0; q < kNumQuantities; ++q) {
      const ErrorSummary& e = group.ours[q];
      if (e.num_rows == 0 || is_repeated(group, Quantity(q))) continue;
      const bool in_ms = text_of(Quantity(q)).is_in_ms;
      const MeasuredRun& worst = report.table.runs[e.worst_run];
      table.rows.push_back({group.name, std::string(text_of(Quantity(q)).label),
                            fmt::format("{}", e.num_rows), error_size_text(e.mean_size, in_ms),
                            error_size_text(e.median_size, in_ms), error_text(e.bias, in_ms),
                            error_text(e.worst, in_ms),
                            error_size_text(group.other[q].mean_size, in_ms),
                            fmt::format("line {}: {}", line_number(worst), name_of(worst))});
    }
  };
  for (const GroupErrors& group : report.errors.models) add(group);
  if (report.errors.models.size() > 1) add(report.errors.all);
  std::string html =
      "<section id=\"errors\"><h2>Errors</h2>\n<p>Predicted / measured - 1, or the difference in "
      "ms. Mean and median are of its size. TTFT above 200 ms leaves out critical runs, those "
      "within 3 % of their capacity.</p>\n" +
      report::markup(table);
  if (report.errors.groups.size() > 1) {
    table.rows.clear();
    for (const GroupErrors& group : report.errors.groups) add(group);
    html += "<details><summary>By group</summary>" + report::markup(table) + "</details>\n";
  }
  return html + "</section>\n";
}

std::string sweeps_section(const ValidationReport& report) {
  if (report.errors.choices.empty()) return "";
  report::DataTable table{{"sweep", "best max_loras", "chosen", "loses", "other's choice", "loses"},
                          {}};
  const auto slots = [&](const SweepChoice::Choice& choice) {
    return choice.is_made ? fmt::format("{}", report.table.runs[choice.run].max_loras) : "-";
  };
  for (const SweepChoice& c : report.errors.choices) {
    table.rows.push_back({c.sweep, fmt::format("{}", report.table.runs[c.best].max_loras),
                          slots(c.ours), regret_text(c.ours.regret), slots(c.other),
                          regret_text(c.other.regret)});
  }
  return "<section id=\"sweeps\"><h2>Which max_loras</h2>\n<p>The best by measured throughput, and "
         "what the predictions would have chosen.</p>\n" +
         report::markup(table) + "</section>\n";
}

std::string pair_cells(const Pair& pair, const Shown& shown) {
  const auto cell = [](double value, const std::string& words) {
    return fmt::format("<td data-value=\"{}\">{}</td>", std::isfinite(value) ? value : -1.0,
                       html_text(words));
  };
  return cell(pair.measured, pair.measured > 0 ? shown.format(pair.measured) : "-") +
         cell(pair.predicted, pair.predicted > 0 ? shown.format(pair.predicted) : "-") +
         cell(pair.is_known() ? std::fabs(pair.error()) : -1,
              pair.is_known() ? error_text(pair.error(), false) : "-");
}

// The quantities that any run has both figures of.
std::vector<Shown> shown_of(const ValidationReport& report) {
  std::vector<Shown> shown;
  for (const Shown& s : kShown) {
    for (size_t i = 0; i < report.table.runs.size(); ++i) {
      if (!pair_of(report, i, s.quantity).is_known()) continue;
      shown.push_back(s);
      break;
    }
  }
  return shown;
}

std::string runs_head(const std::vector<Shown>& shown) {
  std::string html = "<thead><tr>";
  const auto add = [&](std::string_view name, std::string_view unit) {
    html += fmt::format("<th scope=\"col\"><button>{} <small>{}</small></button></th>", name, unit);
  };
  add("max", "loras");
  add("line", "");
  html += "<th scope=\"col\">run</th>";
  for (const Shown& s : shown) {
    add(s.column, "measured");
    add(s.column, "predicted");
    add(s.column, "error");
  }
  return html + "</tr></thead>\n";
}

std::string runs_section(const ValidationReport& report) {
  const std::vector<Shown> shown = shown_of(report);
  std::string html =
      "<section id=\"configurations\"><h2>Every run</h2>\n<p>Select a heading to sort; errors sort "
      "by size.</p>\n<div class=\"scroll\"><table class=\"configs\">" +
      runs_head(shown) + "<tbody>\n";
  for (size_t i = 0; i < report.table.runs.size(); ++i) {
    const MeasuredRun& run = report.table.runs[i];
    if (!report.predicted[i].skip.empty()) continue;
    html += fmt::format(
        "<tr><td data-value=\"{0}\">{0}</td><td data-value=\"{1}\">{1}</td><td "
        "class=\"why\">{2}</td>",
        run.max_loras, html_text(line_number(run)),
        html_name(fmt::format("{}, {}", run.group, name_of(run))));
    for (const Shown& s : shown) html += pair_cells(pair_of(report, i, s.quantity), s);
    html += "</tr>\n";
  }
  return html + "</tbody></table></div></section>\n";
}

// --- charts --------------------------------------------------------------------------------------

report::Figure figure_of(const ValidationReport& report, const Shown& shown) {
  report::Figure figure{.id = shown.id, .title = shown.title};
  const bool is_time = shown.format == report::NumberFormat(format_ms);
  report::Scatter scatter{.unit = shown.unit,
                          .format = is_time ? report::tick_ms : shown.format,
                          .points = {},
                          .names = {}};
  figure.table.head = {"run", "measured", "predicted", "error"};
  for (size_t i = 0; i < report.table.runs.size(); ++i) {
    const Pair pair = pair_of(report, i, shown.quantity);
    if (!pair.is_known()) continue;
    const MeasuredRun& run = report.table.runs[i];
    const std::string name =
        fmt::format("{}, {} (line {})", run.group, name_of(run), line_number(run));
    figure.table.rows.push_back({name, shown.format(pair.measured), shown.format(pair.predicted),
                                 error_text(pair.error(), false)});
    scatter.points.push_back(
        {{pair.measured, pair.predicted},
         style_of(report, run),
         fmt::format("{}\nmeasured {}, predicted {}: {}", name, shown.format(pair.measured),
                     shown.format(pair.predicted), error_text(pair.error(), false))});
  }
  for (const GroupErrors& model : report.errors.models) {
    if (std::ssize(scatter.names) < kMostStyles) scatter.names.push_back(model.name);
  }
  figure.subtitle = "On the diagonal both agree; the pale lines are 10 % off.";
  figure.description = fmt::format("{} of {}, predicted against measured, on log scales.",
                                   shown.title, count_text(std::ssize(scatter.points), "run"));
  figure.height = report::kScatterHeight;
  figure.drawing = report::draw(scatter);
  return figure;
}

std::string charts_section(const ValidationReport& report) {
  std::string html =
      "<section id=\"predictions\"><h2>Predicted and measured</h2>\n<p>One mark for each "
      "run.</p>\n<div class=\"charts\">\n";
  for (const Shown& shown : shown_of(report)) {
    html += report::markup(figure_of(report, shown));
  }
  return html + "</div></section>\n";
}

}  // namespace

void write_validation_html(std::ostream& out, const ValidationReport& report) {
  std::ostringstream json;
  write_validation_json(json, report);
  out << report::page_head("loratory validate") << "<body>\n<main>\n"
      << fmt::format(
             "<p class=\"eyebrow\">loratory validate &middot; {} &middot; {} simulated</p>\n",
             html_name(report.table.source), count_text(report.errors.all.num_runs, "run"))
      << "<div class=\"verdict\">\n<div>\n<h1>" << heading(report) << "</h1>\n"
      << sentences(report) << "</div>\n"
      << tiles(report) << "</div>\n"
      << errors_section(report) << charts_section(report) << sweeps_section(report)
      << runs_section(report) << "</main>\n"
      << report::provenance_footer(report.provenance) << "<div id=\"tip\" hidden></div>\n"
      << report::data_script("results", json.str()) << "<script>" << report::kPageScript
      << "</script>\n</body>\n</html>\n";
}

}  // namespace loratory::sim
