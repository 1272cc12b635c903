#include "cli/commands.hpp"

namespace loratory::cli {

void add_replay(CLI::App&) {}

}  // namespace loratory::cli
