#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/command_line.hpp"
#include "cli/commands.hpp"
#include "cli/config_file.hpp"
#include "cli/exit_code.hpp"
#include "cli/interrupt.hpp"
#include "cli/provenance.hpp"
#include "reference/base/atomic_file.hpp"
#include "reference/base/escape.hpp"
#include "reference/base/input_error.hpp"

namespace {

using loratory::cli::ExitCode;

constexpr const char* kFooter =
    "Exit codes: 0 recommended, or done; 1 a --fail-if holds, or a failure such as a full disk; 2 "
    "bad\n"
    "input; 3 no configuration meets the SLO; 4 none fits in memory.";

// A file that is opened would get the number of a standard stream that is closed. /dev/null takes
// it instead, so that stdin cannot be read and stdout not be written; what stderr gets is lost.
void fill_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    ::open("/dev/null", stream == STDOUT_FILENO ? O_RDONLY : O_WRONLY);  // the lowest free number
  }
}

int fail(ExitCode code, std::string_view line) {
  std::fprintf(stderr, "loratory: %s\n", loratory::printable(line).c_str());
  return int(code);
}

int run(int argc, char** argv) {
  CLI::App app("Size multi-LoRA serving: replay request traces with different max_loras",
               "loratory");
  app.set_version_flag("--version", loratory::cli::version_text());
  app.footer(kFooter);
  app.require_subcommand(1);
  loratory::cli::add_replay(app);
  loratory::cli::add_size(app);
  loratory::cli::add_trace(app);
  loratory::cli::add_compare(app);
  loratory::cli::add_validate(app);
  loratory::cli::add_calibrate(app);
  loratory::cli::add_run(app);
  loratory::cli::add_check(app);
  loratory::cli::add_config_file(app);
  loratory::cli::refuse_missing_values(app);
  std::vector<std::string> words = loratory::cli::arguments(argc, argv);
  std::ranges::reverse(words);  // as CLI11 wants them
  int code = int(ExitCode::good);
  try {
    app.parse(std::move(words));
  } catch (const CLI::Success& success) {  // --help, --version
    code = app.exit(success);
  } catch (const CLI::RuntimeError& end) {  // end_with()
    code = end.get_exit_code();
  } catch (const CLI::ParseError& error) {
    return fail(ExitCode::bad_input, loratory::cli::explain(app, error));
  }
  // CLI11 flushes what --help and --version print: then the error was told already.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw loratory::OutputError("stdout: cannot be written to its end");
  }
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  fill_closed_streams();
  loratory::cli::clean_up_on_signals();
  loratory::cli::remember_command(argc, argv);
  try {
    return run(argc, argv);
  } catch (const loratory::InputError& error) {
    return fail(ExitCode::bad_input, error.what());
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::failure, "memory ran out; give the machine more, or the run less to do");
  } catch (const std::exception& error) {
    return fail(ExitCode::failure, error.what());
  }
}
