#include "cli/flags.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "reference/base/input_error.hpp"
#include "reference/base/text.hpp"
#include "reference/base/wording.hpp"
#include "scheduler_sim/trace/csv_cells.hpp"

namespace loratory::cli {
namespace {

constexpr const char* kInf = "inf";
constexpr int64_t kMostCount = std::numeric_limits<int64_t>::max();

template <typename T>
std::optional<T> number_in(std::string_view text, Range<T> range) {
  const std::optional<T> value = to_number<T>(text);
  if constexpr (std::is_floating_point_v<T>) {
    if (value && !std::isfinite(*value)) return std::nullopt;
  }
  return value && *value >= range.least && *value <= range.most ? value : std::nullopt;
}

template <typename T>
std::string range_text(Range<T> range) {
  return fmt::format("{} to {}", range.least, range.most);
}

// What one could write instead. A flag of fractions shows one.
template <typename T>
std::string example_of(Range<T> range) {
  if constexpr (std::is_floating_point_v<T>) {
    std::vector<T> examples;
    for (const T value : {T(2), T(0.5)}) {
      if (value >= range.least && value <= range.most) examples.push_back(value);
    }
    if (examples.empty()) examples.push_back(range.least / 2 + range.most / 2);
    return fmt::format("give one, such as {:.6g}", fmt::join(examples, " or "));
  }
  return "give a whole number";
}

// The cells of a line of CSV: a name with a comma in it stands in quotes.
std::vector<std::string> names_in(const std::string& flag, const std::string& text) {
  std::vector<std::string> names;
  const auto add = [&](std::string_view cell, uint32_t column, size_t) {
    if (cell.empty()) {
      throw InputError(flag, fmt::format("{} has an empty name", shown(text)),
                       "write names with one comma between two");
    }
    const bool is_quoted = text[column - 1] == '"';
    names.push_back(is_quoted ? sim::unquoted(cell) : std::string(cell));
  };
  try {
    sim::for_each_cell(text, ',', add);
  } catch (const sim::BadRow& bad) {
    throw InputError(flag, fmt::format("{} has {}", shown(text), bad.rule),
                     fmt::format("quote a whole name: {} '\"a,b\",c'", flag));
  }
  return names;
}

}  // namespace

template <typename T>
T parse_number(std::string_view flag, std::string_view text, Range<T> range,
               std::string_view remedy) {
  if (const std::optional<T> value = number_in(text, range)) return *value;
  throw InputError(flag, fmt::format("{} is not a number from {}", shown(text), range_text(range)),
                   remedy.empty() ? example_of(range) : std::string(remedy));
}

template <typename T>
CLI::Option* add_number(CLI::App& app, const std::string& flag, T& value, Range<T> range,
                        const std::string& help) {
  const auto parse = [flag, &value, range](const std::string& text) {
    value = parse_number(flag, text, range);
  };
  return app.add_option_function<std::string>(flag, parse, help)
      ->type_name(range_text(range))
      ->default_str(fmt::format("{}", value));
}

CLI::Option* add_count_or_inf(CLI::App& app, const std::string& flag, int64_t& value,
                              const std::string& help) {
  const auto parse = [flag, &value](const std::string& text) {
    const auto count = text == kInf ? kMostCount : number_in<int64_t>(text, {0, kMostCount});
    if (!count) {
      throw InputError(flag, fmt::format("{} is not a count from 0 or 'inf'", shown(text)),
                       "give a whole number, or inf for never");
    }
    value = *count;
  };
  return app.add_option_function<std::string>(flag, parse, help)
      ->type_name("COUNT or inf")
      ->default_str(fmt::format("{}", value));
}

template <typename T>
CLI::Option* add_numbers(CLI::App& app, const std::string& flag, std::vector<T>& values,
                         Range<T> range, const std::string& help) {
  const auto parse = [flag, &values, range](const std::string& text) {
    values.clear();
    for (const std::string_view part : split(text, ',')) {
      values.push_back(parse_number(flag, part, range));
    }
  };
  return app.add_option_function<std::string>(flag, parse, help)
      ->type_name(fmt::format("{}, ...", range_text(range)));
}

CLI::Option* add_names(CLI::App& app, const std::string& flag, std::vector<std::string>& names,
                       const std::string& help) {
  const auto parse = [flag, &names](const std::vector<std::string>& texts) {
    names.clear();
    for (const std::string& text : texts) {
      for (std::string& name : names_in(flag, text)) names.push_back(std::move(name));
    }
  };
  return app.add_option_function<std::vector<std::string>>(flag, parse, help)
      ->allow_extra_args(false)  // or it would take the words after it
      ->type_name("NAME, ...");
}

CLI::Option* add_choice(CLI::App& app, const std::string& flag, std::string& value,
                        const std::vector<std::string>& choices, const std::string& help) {
  const auto parse = [flag, &value, choices](const std::string& text) {
    if (std::ranges::find(choices, text) == choices.end()) {
      throw InputError(flag,
                       fmt::format("{} is not one of {}", shown(text), fmt::join(choices, ", ")),
                       did_you_mean(text, choices, "give one of them"));
    }
    value = text;
  };
  return app.add_option_function<std::string>(flag, parse, help)
      ->type_name(fmt::format("{}", fmt::join(choices, " | ")))
      ->default_str(value);
}

void refuse_ignored(const CLI::App& app, const std::vector<std::string>& flags,
                    std::string_view why, std::string_view remedy) {
  for (const std::string& flag : flags) {
    const CLI::Option* option = app.get_option_no_throw(flag);
    if (option == nullptr || option->count() == 0) continue;
    throw InputError(flag, fmt::format("changes nothing: {}", why), remedy);
  }
}

using Text = std::string_view;
template int32_t parse_number(Text, Text, Range<int32_t>, Text);
template uint32_t parse_number(Text, Text, Range<uint32_t>, Text);
template int64_t parse_number(Text, Text, Range<int64_t>, Text);
template uint64_t parse_number(Text, Text, Range<uint64_t>, Text);
template double parse_number(Text, Text, Range<double>, Text);

using Flag = const std::string&;
template CLI::Option* add_number(CLI::App&, Flag, int32_t&, Range<int32_t>, Flag);
template CLI::Option* add_number(CLI::App&, Flag, uint32_t&, Range<uint32_t>, Flag);
template CLI::Option* add_number(CLI::App&, Flag, int64_t&, Range<int64_t>, Flag);
template CLI::Option* add_number(CLI::App&, Flag, uint64_t&, Range<uint64_t>, Flag);
template CLI::Option* add_number(CLI::App&, Flag, double&, Range<double>, Flag);
template CLI::Option* add_numbers(CLI::App&, Flag, std::vector<uint32_t>&, Range<uint32_t>, Flag);

}  // namespace loratory::cli
