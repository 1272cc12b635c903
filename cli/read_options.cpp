#include "cli/read_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

#include "cli/flags.hpp"

namespace loratory::cli {

void add_read_options(CLI::App& command, sim::ReadOptions& options) {
  command.add_option_function<std::string>(
      "--format", [&options](const std::string& name) { options.format = sim::trace_format(name); },
      fmt::format("Format of the trace: auto, {}", sim::trace_format_names()));
  command.add_flag("--skip-bad-rows", options.skip_bad_rows,
                   "Skip and count bad rows instead of stopping at the first");
  add_number(command, "--block-tokens", options.block_tokens, {1, 65'536},
             "Tokens per entry of hash_ids, if not the format's own number")
      ->default_str("");
}

}  // namespace loratory::cli
