#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

/// Flags with values that are checked in one way, wherever they stand and whatever they count. The
/// flags fill `value`, which outlives the parse; its first value is the default that --help shows.
namespace loratory::cli {

/// Both ends are allowed.
template <typename T>
struct Range {
  T least, most;
};

/// One number of `range`: decimal digits with an optional '-', for a double also '.' and an
/// exponent. No blanks, no '+', no hex, no "nan" or "inf", nothing beyond the type ("1e400"),
/// nothing after the number.
/// T is int32_t, uint32_t, int64_t, uint64_t or double. Throws InputError at `flag`, with a remedy
/// of its own unless there is one.
template <typename T>
T parse_number(std::string_view flag, std::string_view text, Range<T> range,
               std::string_view remedy = {});

template <typename T>
CLI::Option* add_number(CLI::App& app, const std::string& flag, T& value, Range<T> range,
                        const std::string& help);

/// A count, or "inf" for never, which is the largest number.
CLI::Option* add_count_or_inf(CLI::App& app, const std::string& flag, int64_t& value,
                              const std::string& help);

/// Numbers with commas between them: "8,16".
template <typename T>
CLI::Option* add_numbers(CLI::App& app, const std::string& flag, std::vector<T>& values,
                         Range<T> range, const std::string& help);

/// Names with commas between them, as cells of CSV: a name with a comma stands in double quotes,
/// and a quote in it twice. The flag may be repeated.
CLI::Option* add_names(CLI::App& app, const std::string& flag, std::vector<std::string>& names,
                       const std::string& help);

/// One of `choices`, written exactly so.
CLI::Option* add_choice(CLI::App& app, const std::string& flag, std::string& value,
                        const std::vector<std::string>& choices, const std::string& help);

/// Refuses those of `flags` that the command has and that were given: they would change nothing,
/// because `why`.
void refuse_ignored(const CLI::App& app, const std::vector<std::string>& flags,
                    std::string_view why, std::string_view remedy = "leave it out");

}  // namespace loratory::cli
