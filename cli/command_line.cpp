#include "cli/command_line.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include "reference/base/wording.hpp"

namespace loratory::cli {
namespace {

// The subcommand that was given, or the program; and its name as the user writes it.
struct Given {
  const CLI::App* app;
  std::string name;
};

Given innermost(const CLI::App& program) {
  Given given{&program, program.get_name()};
  while (!given.app->get_subcommands().empty()) {
    given.app = given.app->get_subcommands().front();
    given.name += " " + given.app->get_name();
  }
  return given;
}

std::vector<std::string> subcommands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* subcommand : app.get_subcommands(nullptr)) {
    names.push_back(subcommand->get_name());
  }
  return names;
}

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::string explain_unknown(const CLI::App& program, const Given& given, const std::string& word) {
  const std::string help = fmt::format("see {} --help", given.name);
  if (word.starts_with('-')) {
    std::vector<std::string> flags = flags_of(*given.app);
    for (const std::string& flag : flags_of(program)) flags.push_back(flag);
    const std::string name = word.substr(0, word.find('='));
    return fmt::format("{} is no flag of {}; {}", shown(name), given.name,
                       did_you_mean(name, flags, help));
  }
  const std::vector<std::string> commands = subcommands_of(*given.app);
  if (commands.empty()) {
    return fmt::format("{} belongs to no flag of {}; leave it out, or {}", shown(word), given.name,
                       help);
  }
  return fmt::format("{} is no command of {}; {}", shown(word), given.name,
                     did_you_mean(word, commands, fmt::format("{}", fmt::join(commands, ", "))));
}

// CLI11's own words begin with the name of the flag; those on a switch with a value leave out "--".
const CLI::Option* flag_named_in(const CLI::App& app, const std::string& message) {
  const std::string name = message.substr(0, message.find_first_of(": "));
  return app.get_option_no_throw(name.starts_with('-') ? name : "--" + name);
}

std::string explain_count(const CLI::App& program, const Given& given, const std::string& message) {
  const CLI::Option* flag = flag_named_in(*given.app, message);
  if (flag == nullptr) flag = flag_named_in(program, message);  // --config
  if (flag == nullptr) return message;
  if (flag->get_expected_min() == 0) {
    return fmt::format("{}: takes no value; leave out '=' and what follows", flag->get_name());
  }
  if (flag->count() > 1) {
    return fmt::format("{}: is given {} times; give it once", flag->get_name(), flag->count());
  }
  return fmt::format("{}: its value is missing; see {} --help", flag->get_name(), given.name);
}

}  // namespace

std::vector<std::string> arguments(int argc, const char* const* argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool is_empty_value = word.starts_with("--") && word.find('=') == word.size() - 1;
    words.push_back(is_empty_value ? word.substr(0, word.size() - 1) : word);
    if (is_empty_value) words.emplace_back();
  }
  return words;
}

void refuse_missing_values(CLI::App& program) {
  const auto problem = [](const std::string& word) -> std::string {
    if (word.empty()) return "its value is empty";
    return word.starts_with("--") ? fmt::format("its value is missing, {} is a flag", shown(word))
                                  : "";
  };
  for (CLI::Option* option : program.get_options()) {
    if (option->get_expected_min() > 0) {
      option->check(problem);
    } else {
      option->disable_flag_override();  // "--pack=maybe"
    }
  }
  for (CLI::App* subcommand : program.get_subcommands({})) refuse_missing_values(*subcommand);
}

std::string explain(const CLI::App& program, const CLI::ParseError& error) {
  const Given given = innermost(program);
  const std::string message = error.what();
  const std::vector<std::string> unknown = program.remaining(true);
  if (error.get_name() == "ValidationError") return message;
  if (error.get_name() == "FileError") {
    return fmt::format("--config: {}; name a TOML file of flags", message);
  }
  if (!unknown.empty()) return explain_unknown(program, given, unknown.front());
  if (error.get_name() == "ArgumentMismatch") return explain_count(program, given, message);
  const std::vector<std::string> commands = subcommands_of(*given.app);
  if (error.get_name() == "RequiredError" && !commands.empty()) {
    return fmt::format("{}: the command is missing; give one of {}", given.name,
                       fmt::join(commands, ", "));
  }
  return fmt::format("{}; see {} --help", message, given.name);
}

}  // namespace loratory::cli
