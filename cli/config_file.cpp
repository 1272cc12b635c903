#include "cli/config_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "reference/base/files.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/wording.hpp"

namespace loratory::cli {
namespace {

constexpr size_t kLargestBytes = 1 << 20;

std::string place_of(const std::string& path, const toml::source_region& source) {
  return fmt::format("{}:{}", path, source.begin.line);
}

toml::table read_toml(const std::string& path) {
  const std::string text = read_text_file(path, kLargestBytes, "name a TOML file of flags");
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw InputError(
        fmt::format("{}:{}", place_of(path, error.source()), error.source().begin.column),
        error.description(), "write TOML: flag = value");
  }
}

// As it would stand on the command line; an empty list for what could not.
std::vector<std::string> flag_values(const toml::node& node) {
  if (const auto* text = node.as_string()) return {text->get()};
  if (const auto* number = node.as_integer()) return {fmt::format("{}", number->get())};
  if (const auto* number = node.as_floating_point()) return {fmt::format("{}", number->get())};
  std::vector<std::string> values;
  const auto* array = node.as_array();
  for (size_t i = 0; array != nullptr && i < array->size(); ++i) {
    const std::vector<std::string> one = flag_values((*array)[i]);
    if (one.size() != 1 || (*array)[i].is_array()) return {};
    values.push_back(one.front());
  }
  return values;
}

std::vector<std::string> keys_of(const CLI::App& app) {
  std::vector<std::string> keys;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_configurable()) continue;
    for (const std::string& name : option->get_lnames()) keys.push_back(name);
  }
  return keys;
}

void set_flag(CLI::Option& option, const toml::node& node) {
  if (option.get_expected_min() == 0) {  // a switch
    if (!node.is_boolean()) throw InputError(option.get_name(), "is neither true nor false");
    if (node.as_boolean()->get()) option.add_result("true");
    return;
  }
  std::vector<std::string> values = flag_values(node);
  if (values.empty()) {
    throw InputError(option.get_name(), "has no value that a flag could have",
                     "write a string, a number or a list of them");
  }
  for (const std::string& value : values) {
    if (value.find('\0') != std::string::npos) {
      throw InputError(option.get_name(), "its value has a NUL in it", "write text");
    }
  }
  if (option.get_expected_max() > 1) {
    option.add_result(values);
  } else {
    option.add_result(fmt::format("{}", fmt::join(values, ",")));
  }
  option.run_callback();
}

void apply(const toml::table& table, const std::string& path, CLI::App& app) {
  const std::vector<std::string> keys = keys_of(app);
  for (const auto& [key, node] : table) {
    const std::string place = place_of(path, key.source());
    if (node.is_table()) {
      throw InputError(place, fmt::format("{} is a table", shown(key.str())),
                       "write the flags of the command that runs, without a table");
    }
    if (std::ranges::find(keys, key.str()) == keys.end()) {
      throw InputError(place, fmt::format("{} is no flag of {}", shown(key.str()), app.get_name()),
                       did_you_mean(key.str(), keys, "leave it out"));
    }
    CLI::Option& option = *app.get_option(fmt::format("--{}", key.str()));
    if (option.count() > 0) continue;  // the command line wins
    try {
      set_flag(option, node);
    } catch (const std::runtime_error& error) {
      throw InputError(place, error.what());
    }
  }
}

// What CLI11 asks for the keys of the file. This one sets the flags itself: only so does an error
// know its line, and only so do the keys belong to the subcommand that was given.
class SubcommandConfig : public CLI::ConfigTOML {
 public:
  explicit SubcommandConfig(CLI::App& program) : program_(program) {}

  std::vector<CLI::ConfigItem> from_config(std::istream&) const override {
    CLI::App* app = &program_;
    while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
    const auto path = program_.get_config_ptr()->as<std::string>();
    const toml::table table = read_toml(path);
    if (app != &program_) apply(table, path, *app);
    return {};
  }

 private:
  CLI::App& program_;
};

// CLI11 opens the file before read_toml() can look at it; to open a pipe may wait for ever.
std::string refuse_pipe(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_fifo(path, ignored)) return "";
  throw InputError(path, "is a pipe or a device, not a file", "write it to a file first");
}

void let_fall_through(CLI::App& app) {
  for (CLI::App* subcommand : app.get_subcommands({})) {
    subcommand->fallthrough();
    let_fall_through(*subcommand);
  }
}

}  // namespace

void add_config_file(CLI::App& program) {
  program.set_config("--config", "", "TOML file with any of the subcommand's flags")
      ->type_name("FILE")
      ->check(refuse_pipe, "");
  program.config_formatter(std::make_shared<SubcommandConfig>(program));
  let_fall_through(program);
}

std::string config_path(const CLI::App& command) {
  const CLI::App* program = &command;
  while (program->get_parent() != nullptr) program = program->get_parent();
  const CLI::Option* config = program->get_config_ptr();
  return config == nullptr || config->count() == 0 ? "" : config->as<std::string>();
}

}  // namespace loratory::cli
