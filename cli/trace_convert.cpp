#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/commands.hpp"
#include "cli/ignored_options.hpp"
#include "cli/output_files.hpp"
#include "cli/read_options.hpp"
#include "cli/write_trace.hpp"
#include "reference/base/escape.hpp"
#include "reference/base/units.hpp"
#include "scheduler_sim/trace/anonymise.hpp"
#include "scheduler_sim/trace/reader.hpp"

namespace loratory::cli {
namespace {

struct ConvertOptions {
  std::string in, out;
  sim::ReadOptions read;
  bool anonymise = false;
};

void run(const CLI::App& command, const ConvertOptions& options) {
  OutputFiles files(command, {{"the trace", options.in}});
  files.open("out", options.out);
  sim::Trace trace = read_with_progress(options.in, options.read);
  refuse_ignored_options(command, trace);
  if (options.anonymise) sim::anonymise(trace);
  write_trace(files, "out", trace);
  for (const std::string& note : trace.notes) fmt::print(stderr, "note: {}\n", printable(note));
  fmt::print(stderr, "{}: {} written, {} skipped\n", printable(options.out),
             count_text(std::ssize(trace.requests), "request"),
             count_text(int64_t(trace.num_rows_skipped), "bad row"));
}

}  // namespace

void add_trace_convert(CLI::App& trace) {
  CLI::App& command = *trace.add_subcommand("convert", "Write a trace as native JSON lines");
  const auto options = std::make_shared<ConvertOptions>();
  command.add_option("in", options->in, "Trace file, - for stdin")->required();
  command.add_option("out", options->out, "File to write, .gz and .zst by name, - for stdout")
      ->required();
  command.add_flag("--anonymise", options->anonymise,
                   "Replace names, ids and content by numbers; lengths and gaps stay");
  add_read_options(command, options->read);
  command.final_callback([&command, options] { run(command, *options); });
}

}  // namespace loratory::cli
