#include "cli/commands.hpp"

namespace loratory::cli {

void add_trace_generate(CLI::App&) {}

}  // namespace loratory::cli
