#include "cli/read_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "cli/flags.hpp"
#include "cli/progress.hpp"
#include "reference/base/input_error.hpp"

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
  command.add_option_function<std::string>(
      "--adapter-from",
      [&options](const std::string& source) {
        if (source != "model") {
          throw InputError("--adapter-from", fmt::format("'{}' is unknown", source), "use model");
        }
        options.adapter_from_model = true;
      },
      "model: the model name of a row is its adapter, unless it is a --base-model");
  command
      .add_option("--base-model", options.base_models,
                  "With --adapter-from model: name of the base model; may be repeated")
      ->allow_extra_args(false);
  add_number(command, "--default-prompt", options.default_prompt_tokens, {1, INT32_MAX},
             "Prompt tokens of the requests of a log that does not say")
      ->default_str("");
  add_number(command, "--default-output", options.default_output_tokens, {1, INT32_MAX},
             "Output tokens of the requests of a log that does not say")
      ->default_str("");
}

sim::Trace read_with_progress(const std::string& path, sim::ReadOptions options) {
  constexpr int64_t kBytesPerMb = 1'000'000;
  Progress progress("reading");
  options.on_progress = [&](uint64_t bytes_read, uint64_t bytes, uint64_t num_rows) {
    if (bytes >= uint64_t(kBytesPerMb)) {
      progress.show(int64_t(bytes_read) / kBytesPerMb, int64_t(bytes) / kBytesPerMb, "MB");
    } else {
      progress.show(int64_t(num_rows), 0, "rows");
    }
  };
  return sim::read_trace(path, options);
}

}  // namespace loratory::cli
