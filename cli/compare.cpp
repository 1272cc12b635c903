#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/exit_code.hpp"
#include "scheduler_sim/report/compare.hpp"

namespace loratory::cli {
namespace {

struct CompareOptions {
  std::string a, b;
  std::vector<std::string> conditions;
};

// Files after the conditions: a slip in one costs no reading.
void run_compare(const CompareOptions& options) {
  std::vector<sim::Condition> conditions;
  for (const std::string& text : options.conditions) {
    conditions.push_back(sim::parse_condition(text));
  }
  const sim::ResultsFile a = sim::read_results(options.a);
  const sim::ResultsFile b = sim::read_results(options.b);
  const sim::Comparison comparison = sim::compare(a, b, conditions);
  std::fputs(comparison.text.c_str(), stdout);
  for (const std::string& failure : comparison.failures) std::printf("%s\n", failure.c_str());
  end_with(comparison.failures.empty() ? ExitCode::good : ExitCode::failure);
}

}  // namespace

void add_compare(CLI::App& app) {
  CLI::App& command = *app.add_subcommand(
      "compare", "Two results.json side by side: settings that differ, measures, one sentence");
  const auto options = std::make_shared<CompareOptions>();
  command.add_option("A", options->a, "results.json of the one")->required();
  command.add_option("B", options->b, "results.json of the other")->required();
  command
      .add_option("--fail-if", options->conditions,
                  "End with 1 if this holds: 'ttft_p99>+10%', 'goodput<-2%' (the change from A to "
                  "B) or 'ttft_p99>500ms' (the value in B); may be repeated")
      ->allow_extra_args(false);  // or it would take the files after it
  command.final_callback([options] { run_compare(*options); });
}

}  // namespace loratory::cli
