#pragma once

#include <string>

namespace CLI {
class App;
}

namespace loratory::cli {

/// Adds `--config run.toml` to the program: its keys are the long flags, without dashes, of
/// whatever subcommand runs ("max-num-seqs = 64"); arrays are lists ("pin = ['a', 'b']"). A flag on
/// the command line wins. A line of TOML, a key or a value that is wrong throws InputError at
/// `file:line`. Call after the subcommands are there; it makes them fall through, so that
/// `--config` may follow the subcommand.
void add_config_file(CLI::App& program);

/// The file of --config that a subcommand was given; empty if none.
std::string config_path(const CLI::App& command);

}  // namespace loratory::cli
