#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "cli/command_line.hpp"
#include "cli/commands.hpp"
#include "cli/config_file.hpp"
#include "cli/provenance.hpp"

namespace {

constexpr int kBadInput = 2;

int fail(std::string line) {
  for (char& c : line) {
    if (c == '\n') c = ' ';
  }
  std::fprintf(stderr, "loratory: %s\n", line.c_str());
  return kBadInput;
}

int run(int argc, char** argv) {
  CLI::App app("Size multi-LoRA serving: replay request traces with different max_loras",
               "loratory");
  app.set_version_flag("--version", loratory::cli::version_text());
  app.require_subcommand(1);
  loratory::cli::add_replay(app);
  loratory::cli::add_size(app);
  loratory::cli::add_trace(app);
  loratory::cli::add_config_file(app);
  loratory::cli::refuse_flags_as_values(app);
  std::vector<std::string> words = loratory::cli::arguments(argc, argv);
  std::ranges::reverse(words);  // as CLI11 wants them
  try {
    app.parse(std::move(words));
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return fail(loratory::cli::explain(app, error));
  }
  if (std::fflush(stdout) != 0) return fail("stdout: cannot be written; check the disk or pipe");
  return 0;
}

}  // namespace

// Exit 0 good, 1 a check failed, 2 bad input or output that can not be written.
int main(int argc, char** argv) {
  loratory::cli::remember_command(argc, argv);
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}
