#pragma once

namespace CLI {
class App;
}

/// The subcommands of the program, one file each. Every function adds its subcommand to the parent
/// it is given, with a final callback that does the work and throws InputError on bad input.
namespace loratory::cli {

void add_replay(CLI::App& app);
void add_size(CLI::App& app);
void add_trace(CLI::App& app);
void add_compare(CLI::App& app);
void add_validate(CLI::App& app);
void add_calibrate(CLI::App& app);
void add_run(CLI::App& app);
void add_check(CLI::App& app);

void add_trace_info(CLI::App& trace);
void add_trace_convert(CLI::App& trace);
void add_trace_generate(CLI::App& trace);

}  // namespace loratory::cli
