#include "scheduler_sim/trace/numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <limits>

#include "reference/base/text.hpp"
#include "reference/base/units.hpp"

namespace loratory::sim {
namespace {

size_t count_digits(std::string_view text) {
  return size_t(std::find_if_not(text.begin(), text.end(), is_digit) - text.begin());
}

// A JSON number taken apart: -digits.fraction e exponent.
struct NumberText {
  bool is_negative = false;
  std::string_view digits, fraction;
  int64_t exponent = 0;
};

bool split_exponent(std::string_view text, int64_t& exponent) {
  if (text.empty()) return true;
  if (text.front() != 'e' && text.front() != 'E') return false;
  text.remove_prefix(1);
  const bool is_negative = text.starts_with('-');
  if (is_negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.empty() || count_digits(text) != text.size()) return false;
  // Beyond +-9999 every number is 0 or out of range, so digits behind the fourth do not matter.
  text.remove_prefix(std::min(text.find_first_not_of('0'), text.size()));
  if (text.size() > 4) text = "9999";
  std::from_chars(text.data(), text.data() + text.size(), exponent);
  if (is_negative) exponent = -exponent;
  return true;
}

bool split_number(std::string_view text, NumberText& number) {
  number.is_negative = text.starts_with('-');
  if (number.is_negative) text.remove_prefix(1);
  number.digits = text.substr(0, count_digits(text));
  text.remove_prefix(number.digits.size());
  if (number.digits.empty()) return false;
  if (number.digits.size() > 1 && number.digits.front() == '0') return false;
  if (text.starts_with('.')) {
    number.fraction = text.substr(1, count_digits(text.substr(1)));
    if (number.fraction.empty()) return false;
    text.remove_prefix(1 + number.fraction.size());
  }
  return split_exponent(text, number.exponent);
}

// The decimal digits of a number in one row: `digits` then `fraction`.
char digit_at(const NumberText& number, size_t index) {
  return index < number.digits.size() ? number.digits[index]
                                      : number.fraction[index - number.digits.size()];
}

// Two digits at `text[at]`, or -1.
int two_digits(std::string_view text, size_t at) {
  if (!is_digit(text[at]) || !is_digit(text[at + 1])) return -1;
  return 10 * (text[at] - '0') + (text[at + 1] - '0');
}

constexpr int kFirstYear = 1970, kLastYear = 2199;

bool in_range(int value, int low, int high) { return value >= low && value <= high; }

Parse parse_date(std::string_view text, int64_t& days) {
  if (text[4] != '-' || text[7] != '-') return Parse::not_a_number;
  const int century = two_digits(text, 0), year_of = two_digits(text, 2);
  const int month = two_digits(text, 5), day = two_digits(text, 8);
  if (century < 0 || year_of < 0 || month < 0 || day < 0) return Parse::not_a_number;
  const std::chrono::year_month_day date{std::chrono::year(100 * century + year_of),
                                         std::chrono::month(unsigned(month)),
                                         std::chrono::day(unsigned(day))};
  if (!date.ok() || !in_range(int(date.year()), kFirstYear, kLastYear)) return Parse::out_of_range;
  days = std::chrono::sys_days(date).time_since_epoch().count();
  return Parse::good;
}

Parse parse_clock(std::string_view text, int64_t& seconds) {
  if (text[2] != ':' || text[5] != ':') return Parse::not_a_number;
  const int hour = two_digits(text, 0), minute = two_digits(text, 3), second = two_digits(text, 6);
  if (hour < 0 || minute < 0 || second < 0) return Parse::not_a_number;
  if (hour > 23 || minute > 59 || second > 59) return Parse::out_of_range;
  seconds = 3600 * hour + 60 * minute + second;
  return Parse::good;
}

Parse parse_zone(std::string_view text, int64_t& offset_s) {
  if (text.empty() || text == "Z") return Parse::good;
  const bool has_minutes = text.size() == 6 && text[3] == ':';
  if (text.size() != 3 && !has_minutes) return Parse::not_a_number;
  if (text[0] != '+' && text[0] != '-') return Parse::not_a_number;
  const int hours = two_digits(text, 1), minutes = has_minutes ? two_digits(text, 4) : 0;
  if (hours < 0 || minutes < 0) return Parse::not_a_number;
  if (hours > 14 || minutes > 59) return Parse::out_of_range;
  offset_s = (text[0] == '-' ? -1 : 1) * (3600 * hours + 60 * minutes);
  return Parse::good;
}

}  // namespace

Parse parse_scaled(std::string_view text, int scale, int64_t& value) {
  NumberText number;
  if (!split_number(text, number)) return Parse::not_a_number;
  // Digit i has the weight 10^(units - 1 - i): the first `units` digits are the whole part.
  const int64_t units = int64_t(number.digits.size()) + number.exponent + scale;
  const auto num_digits = int64_t(number.digits.size() + number.fraction.size());
  int64_t magnitude = 0;
  for (int64_t i = 0; i < units; ++i) {
    // Trailing zeros stop mattering for 0 and run out of range for all else within 19 rounds.
    if (i >= num_digits && magnitude == 0) break;
    const int digit = i < num_digits ? digit_at(number, size_t(i)) - '0' : 0;
    if (__builtin_mul_overflow(magnitude, 10, &magnitude) ||
        __builtin_add_overflow(magnitude, digit, &magnitude)) {
      return Parse::out_of_range;
    }
  }
  const bool has_half = units >= 0 && units < num_digits;
  if (has_half && digit_at(number, size_t(units)) >= '5' &&
      __builtin_add_overflow(magnitude, 1, &magnitude)) {
    return Parse::out_of_range;
  }
  value = number.is_negative ? -magnitude : magnitude;
  return Parse::good;
}

Parse parse_integer(std::string_view text, int64_t& value) {
  const std::string_view digits = text.substr(text.starts_with('-') ? 1 : 0);
  if (digits.size() > 1 && digits.front() == '0') return Parse::not_a_number;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::invalid_argument || stop != end) return Parse::not_a_number;
  return error == std::errc() ? Parse::good : Parse::out_of_range;
}

Parse parse_double(std::string_view text, double& value) {
  NumberText number;
  if (!split_number(text, number)) return Parse::not_a_number;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? Parse::good : Parse::out_of_range;
}

Parse parse_timestamp(std::string_view text, int64_t& unix_ns) {
  constexpr size_t kDateChars = 10, kClockChars = 8;
  if (text.size() < kDateChars + 1 + kClockChars) return Parse::not_a_number;
  if (text[kDateChars] != ' ' && text[kDateChars] != 'T') return Parse::not_a_number;
  int64_t days = 0, seconds = 0, offset_s = 0, fraction_ns = 0;
  const Parse date = parse_date(text, days);
  if (date != Parse::good) return date;
  const Parse clock = parse_clock(text.substr(kDateChars + 1), seconds);
  if (clock != Parse::good) return clock;

  text.remove_prefix(kDateChars + 1 + kClockChars);
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    const size_t num_digits = count_digits(text);
    if (num_digits == 0 || num_digits > 9) return Parse::not_a_number;
    std::from_chars(text.data(), text.data() + num_digits, fraction_ns);
    for (size_t i = num_digits; i < 9; ++i) fraction_ns *= 10;
    text.remove_prefix(num_digits);
  }
  const Parse zone = parse_zone(text, offset_s);
  if (zone != Parse::good) return zone;
  unix_ns = (86'400 * days + seconds - offset_s) * kNsPerSecond + fraction_ns;
  return Parse::good;
}

std::string timestamp_limit(std::string_view text) {
  const int year = 100 * two_digits(text, 0) + two_digits(text, 2);
  const int month = two_digits(text, 5), day = two_digits(text, 8);
  if (!in_range(year, kFirstYear, kLastYear)) {
    return fmt::format("years go from {} to {}", kFirstYear, kLastYear);
  }
  if (!in_range(month, 1, 12)) return "months go from 01 to 12";
  const auto last =
      std::chrono::year(year) / std::chrono::month(unsigned(month)) / std::chrono::last;
  const int num_days = int(unsigned(last.day()));
  if (!in_range(day, 1, num_days)) {
    return fmt::format("days of {} go from 01 to {}", text.substr(0, 7), num_days);
  }
  if (two_digits(text, 11) > 23) return "hours go from 00 to 23";
  if (two_digits(text, 14) > 59) return "minutes go from 00 to 59";
  if (two_digits(text, 17) > 59) return "seconds go from 00 to 59";
  return "zones go from -14:59 to +14:59";
}

std::string without_grouping(std::string_view text) {
  const size_t first = text.find_first_of(".,"), last = text.find_last_of(".,");
  if (first == last) return "";  // one mark, or none
  const bool has_point = text[last] != text[first];
  const auto groups = split(text.substr(0, has_point ? last : text.size()), text[first]);
  std::string number;
  for (const std::string_view group : groups) {
    if (!number.empty() && group.size() != 3) return "";
    number += group;
  }
  if (has_point) number += fmt::format(".{}", text.substr(last + 1));
  double value = 0;
  return parse_double(number, value) == Parse::good ? number : "";
}

}  // namespace loratory::sim
