#include "cli/exit_code.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>

namespace loratory::cli {

ExitCode exit_code_of(const sim::SizeResult& result) {
  if (std::ranges::none_of(result.configs, &sim::ConfigResult::feasible)) {
    return ExitCode::nothing_fits;
  }
  const bool is_good = result.is_replay || result.recommended >= 0;
  return is_good ? ExitCode::good : ExitCode::slo_missed;
}

void end_with(ExitCode code) {
  if (code != ExitCode::good) throw CLI::RuntimeError(int(code));
}

}  // namespace loratory::cli
