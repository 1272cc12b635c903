#include "cli/read_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

namespace loratory::cli {

void add_read_options(CLI::App& command, sim::ReadOptions& options) {
  command.add_option_function<std::string>(
      "--format", [&options](const std::string& name) { options.format = sim::trace_format(name); },
      fmt::format("Format of the trace: auto, {}", sim::trace_format_names()));
  command.add_flag("--skip-bad-rows", options.skip_bad_rows,
                   "Skip and count bad rows instead of stopping at the first");
  command.add_option("--block-tokens", options.block_tokens,
                     "Tokens per entry of hash_ids, if not the format's own number");
}

}  // namespace loratory::cli
