#include "cli/commands.hpp"

namespace loratory::cli {

void add_size(CLI::App&) {}

}  // namespace loratory::cli
