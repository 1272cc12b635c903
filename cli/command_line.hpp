#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace loratory::cli {

/// What CLI11 is to parse: argv without the program, "--flag=" as a flag and an empty value (which
/// CLI11 would take for a flag without one, and eat the next word).
std::vector<std::string> arguments(int argc, const char* const* argv);

/// Makes every flag of the program refuse an empty value, and one that is a flag: in "--json --html
/// x.html" the name of the JSON file is missing. Switches take no value at all. Call when all flags
/// are there.
void refuse_missing_values(CLI::App& program);

/// What is wrong with a command line that CLI11 refused with `error`, in one line with the nearest
/// name that would have been right.
std::string explain(const CLI::App& program, const CLI::ParseError& error);

}  // namespace loratory::cli
