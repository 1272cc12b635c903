#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/ignored_options.hpp"
#include "cli/output_files.hpp"
#include "cli/progress.hpp"
#include "cli/read_options.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/wording.hpp"
#include "scheduler_sim/trace/info.hpp"
#include "scheduler_sim/trace/numbers.hpp"
#include "scheduler_sim/trace/reader.hpp"

namespace loratory::cli {
namespace {

struct InfoOptions {
  std::string trace;
  sim::ReadOptions read;
  std::vector<std::string> reuse;
  std::string json;
};

std::vector<uint64_t> capacities(const std::vector<std::string>& texts) {
  std::vector<uint64_t> blocks;
  for (const std::string& text : texts) {
    int64_t value = 0;
    if (text == "inf") {
      blocks.push_back(sim::kUnboundedBlocks);
    } else if (sim::parse_integer(text, value) == sim::Parse::good && value >= 0) {
      blocks.push_back(uint64_t(value));
    } else {
      throw InputError("--reuse", fmt::format("{} is not a number of blocks", shown(text)),
                       "list capacities, for example 1000,5859,inf");
    }
  }
  return blocks;
}

void run(const CLI::App& command, const InfoOptions& options) {
  const std::vector<uint64_t> blocks = capacities(options.reuse);
  OutputFiles files(command, {{"the trace", options.trace}});
  files.open("--json", options.json);
  const sim::Trace trace = read_with_progress(options.trace, options.read);
  refuse_ignored_options(command, trace);
  if (!blocks.empty() && trace.block_tokens == 0) {
    throw InputError("--reuse", "the trace has no prefix blocks",
                     "leave it out, or give a trace with hash_ids or block_ids");
  }
  sim::TraceSummary summary;
  std::vector<sim::PrefixReuse> reuse;
  {
    const Progress progress("counting");
    summary = sim::summarize(trace);
    reuse = sim::prefix_reuse(trace, blocks);
  }
  std::fputs(sim::info_table(trace, summary, reuse).c_str(), files.table());
  if (auto* out = files.find("--json")) *out << sim::info_json(trace, summary, reuse);
  files.commit();
}

}  // namespace

void add_trace_info(CLI::App& trace) {
  CLI::App& command =
      *trace.add_subcommand("info", "Lengths, rate, adapters and prefix reuse of a trace");
  const auto options = std::make_shared<InfoOptions>();
  command.add_option("trace", options->trace, "Trace file, - for stdin")->required();
  command
      .add_option("--reuse", options->reuse,
                  "Prefix-cache capacities in blocks, for example 1000,5859,inf")
      ->delimiter(',')
      ->allow_extra_args(false);  // or it would take the trace after it
  command.add_option("--json", options->json, "Write the same as JSON to this file");
  add_read_options(command, options->read);
  command.final_callback([&command, options] { run(command, *options); });
}

}  // namespace loratory::cli
