#include "scheduler_sim/workload/length_law.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reference/base/check.hpp"
#include "reference/base/files.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/text.hpp"
#include "reference/base/wording.hpp"
#include "scheduler_sim/workload/deterministic_math.hpp"
#include "scheduler_sim/workload/text_table.hpp"

namespace loratory::sim {
namespace {

constexpr std::string_view kLengthForms =
    "give constant:N, lognormal:MEAN:P50[:MAX] or histogram:FILE";

uint32_t parse_tokens(std::string_view text, std::string_view place) {
  const double tokens = parse_number(text, "length", place);
  if (tokens < 1 || tokens > LengthLaw::kMaxTokens || tokens != std::floor(tokens)) {
    throw InputError(place, fmt::format("length '{}' is not a number of tokens", text),
                     fmt::format("it must lie in 1 .. {}", LengthLaw::kMaxTokens));
  }
  return uint32_t(tokens);
}

LengthLaw parse_lognormal(std::string_view values, std::string_view place) {
  const auto parts = split(values, ':');
  if (parts.size() < 2 || parts.size() > 3) {
    throw InputError(place, fmt::format("lognormal:{} lacks a value", values), kLengthForms);
  }
  const double mean = parse_number(parts[0], "mean", place);
  const double p50 = parse_number(parts[1], "p50", place);
  if (mean > LengthLaw::kMaxTokens) {
    throw InputError(place, fmt::format("a mean of {} tokens is too long", mean),
                     fmt::format("give at most {}", LengthLaw::kMaxTokens));
  }
  if (!(p50 > 0) || mean < p50) {
    throw InputError(place, fmt::format("no lognormal law has mean {} and p50 {}", mean, p50),
                     "its mean is above its median; swap them?");
  }
  return parts.size() == 3 ? LengthLaw::lognormal(mean, p50, parse_tokens(parts[2], place))
                           : LengthLaw::lognormal(mean, p50);
}

LengthLaw read_histogram(const std::string& path) {
  const std::string text = read_text_file(path);
  std::vector<LengthLaw::Bin> bins;
  double sum = 0;
  for (const auto& row : parse_table(text, path)) {
    if (row.size() != 2) {
      throw InputError(row.back().place(), fmt::format("a row of {} fields", row.size()),
                       "write `up_to_tokens weight`");
    }
    const uint32_t low = bins.empty() ? 0 : bins.back().up_to_tokens + 1;
    bins.push_back({row[0].integer("length", low, LengthLaw::kMaxTokens), row[1].number("weight")});
    sum += bins.back().weight;
    if (bins.back().up_to_tokens == 0 && bins.back().weight > 0) {
      throw InputError(row[1].place(), "a length of 0 has weight", "lengths begin at 1 token");
    }
  }
  if (!(sum > 0)) throw InputError(path, "no weight is above 0", "write `up_to_tokens weight`");
  if (!std::isfinite(sum)) throw InputError(path, "the weights add up to infinity", "scale them");
  return LengthLaw::histogram(bins);
}

}  // namespace

LengthLaw LengthLaw::constant(uint32_t tokens) { return lognormal(tokens, tokens, tokens); }

LengthLaw LengthLaw::lognormal(double mean, double p50, uint32_t max_tokens) {
  LORATORY_ASSERT(p50 > 0 && mean >= p50, "a lognormal law has mean >= p50 > 0");
  LengthLaw law;
  law.mu_ = det_log(p50);
  law.sigma_ = std::sqrt(2 * det_log(mean / p50));
  law.max_tokens_ = max_tokens;
  return law;
}

LengthLaw LengthLaw::histogram(const std::vector<Bin>& bins) {
  LengthLaw law;
  law.bins_ = bins;
  double sum = 0;
  for (Bin& bin : law.bins_) bin.weight = sum += bin.weight;
  LORATORY_ASSERT(sum > 0, "some length must have weight");
  return law;
}

uint32_t LengthLaw::quantile(double u) const {
  if (bins_.empty()) {
    const double tokens = std::floor(det_exp(mu_ + sigma_ * det_normal_quantile(u)) + 0.5);
    return uint32_t(std::clamp(tokens, 1.0, double(max_tokens_)));
  }
  const double target = u * bins_.back().weight;
  const auto not_below = [](const Bin& bin, double value) { return bin.weight < value; };
  const auto bin = std::lower_bound(bins_.begin(), bins_.end(), target, not_below);
  const bool is_first = bin == bins_.begin();
  const double weight_below = is_first ? 0 : std::prev(bin)->weight;
  const uint32_t tokens_below = is_first ? 0 : std::prev(bin)->up_to_tokens;
  const double width = bin->up_to_tokens - tokens_below;
  const double inside = (target - weight_below) / (bin->weight - weight_below);
  return std::min(bin->up_to_tokens, tokens_below + 1 + uint32_t(inside * width));
}

LengthLaw parse_length_law(std::string_view text, std::string_view place) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const std::string_view values = colon == text.npos ? "" : text.substr(colon + 1);
  if (!values.empty()) {
    if (name == "constant") return LengthLaw::constant(parse_tokens(values, place));
    if (name == "lognormal") return parse_lognormal(values, place);
    if (name == "histogram") return read_histogram(std::string(values));
  }
  static const std::vector<std::string> kLaws = {"constant", "lognormal", "histogram"};
  throw InputError(place, fmt::format("unknown law of lengths {}", shown(text)),
                   did_you_mean_other(name, kLaws, kLengthForms));
}

}  // namespace loratory::sim
