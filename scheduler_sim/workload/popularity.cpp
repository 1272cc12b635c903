#include "scheduler_sim/workload/popularity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "reference/base/check.hpp"
#include "reference/base/files.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/wording.hpp"
#include "scheduler_sim/trace/bad_row.hpp"
#include "scheduler_sim/trace/row_fields.hpp"
#include "scheduler_sim/workload/deterministic_math.hpp"
#include "scheduler_sim/workload/text_table.hpp"

namespace loratory::sim {
namespace {

constexpr std::string_view kPopularityForms =
    "give uniform, zipf:A, power:A, weights:FILE or servegen:FILE[#MODEL]";

double share_of(const Popularity& popularity, uint32_t index, uint32_t num_adapters) {
  const double n = num_adapters;
  switch (popularity.kind) {
    case PopularityKind::zipf:
      return det_pow(index + 1.0, -popularity.exponent);
    case PopularityKind::power:
      return det_pow((index + 1.0) / n, popularity.exponent) -
             det_pow(index / n, popularity.exponent);
    default:
      return 1;
  }
}

std::vector<TraceAdapter> numbered_adapters(uint32_t num_adapters) {
  const size_t width = std::max<size_t>(3, fmt::formatted_size("{}", num_adapters - 1));
  std::vector<TraceAdapter> adapters;
  for (uint32_t i = 0; i < num_adapters; ++i) {
    adapters.push_back({fmt::format("adapter-{:0{}}", i, width), 0});
  }
  return adapters;
}

void deal_ranks(std::vector<TraceAdapter>& adapters, const std::vector<uint32_t>& ranks) {
  if (ranks.empty()) return;
  for (size_t i = 0; i < adapters.size(); ++i) {
    if (adapters[i].rank == 0) adapters[i].rank = ranks[i % ranks.size()];
  }
}

struct WeightedAdapters {
  std::vector<TraceAdapter> adapters;
  std::vector<double> weights;
};

void check_name(const TableField& name) {
  try {
    check_utf8(name.text);
  } catch (const BadRow& bad) {
    throw InputError(name.place(), bad.rule, bad.remedy);
  }
}

WeightedAdapters read_weights(const std::string& path) {
  const std::string text = read_text_file(path);
  WeightedAdapters result;
  std::set<std::string_view> names;
  double sum = 0;
  for (const auto& row : parse_table(text, path)) {
    if (row[0].line == 1 && row[0].text == "name") continue;  // a header
    if (row.size() < 2 || row.size() > 3) {
      throw InputError(row.back().place(), fmt::format("a row of {} fields", row.size()),
                       "write `name weight` or `name weight rank`");
    }
    check_name(row[0]);
    if (!names.insert(row[0].text).second) {
      throw InputError(row[0].place(), fmt::format("adapter '{}' appears twice", row[0].text),
                       "name every adapter once");
    }
    const uint32_t rank = row.size() == 3 ? row[2].integer("rank", 1, kMaxRank) : 0;
    result.adapters.push_back({std::string(row[0].text), rank});
    result.weights.push_back(row[1].number("weight"));
    sum += result.weights.back();
  }
  if (!(sum > 0)) throw InputError(path, "no weight is above 0", "write rows `name weight`");
  if (!std::isfinite(sum)) throw InputError(path, "the weights add up to infinity", "scale them");
  return result;
}

AdapterMix mix_from_weights(const Popularity& popularity, uint32_t num_adapters,
                            const std::vector<uint32_t>& ranks) {
  WeightedAdapters weighted = read_weights(popularity.path);
  if (num_adapters != 0 && num_adapters != weighted.adapters.size()) {
    throw InputError("--adapters",
                     fmt::format("{} adapters requested, but {} has {}", num_adapters,
                                 popularity.path, weighted.adapters.size()),
                     "leave out --adapters to take all of the file");
  }
  deal_ranks(weighted.adapters, ranks);
  return AdapterMix(std::move(weighted.adapters), weighted.weights);
}

AdapterMix mix_from_clients(const Popularity& popularity, uint32_t num_adapters,
                            const std::vector<uint32_t>& ranks) {
  const ClientLoad load = make_client_load(read_client_windows(popularity.path), popularity.model,
                                           num_adapters, popularity.path);
  std::vector<TraceAdapter> adapters;
  for (const std::string& name : load.names) adapters.push_back({name, 0});
  deal_ranks(adapters, ranks);
  return AdapterMix(std::move(adapters), load);
}

std::vector<double> cumulate(const std::vector<double>& shares) {
  std::vector<double> sums;
  double sum = 0;
  for (const double share : shares) sums.push_back(sum += share);
  return sums;
}

}  // namespace

std::string Popularity::text() const {
  switch (kind) {
    case PopularityKind::uniform:
      return "uniform";
    case PopularityKind::zipf:
      return fmt::format("zipf:{}", exponent);
    case PopularityKind::power:
      return fmt::format("power:{}", exponent);
    case PopularityKind::weights:
      return "weights:" + path;
    case PopularityKind::servegen:
      return model.empty() ? "servegen:" + path : fmt::format("servegen:{}#{}", path, model);
  }
  return {};
}

Popularity parse_popularity(std::string_view text, std::string_view place) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const std::string_view value = colon == text.npos ? "" : text.substr(colon + 1);
  Popularity result;
  if (text == "uniform") return result;
  if (value.empty())
    throw InputError(place, fmt::format("unknown law {}", shown(text)), kPopularityForms);
  if (name == "zipf" || name == "power") {
    result.kind = name == "zipf" ? PopularityKind::zipf : PopularityKind::power;
    result.exponent = parse_number(value, "exponent", place);
    if (name == "power" && result.exponent == 0) {
      throw InputError(place, "power:0 has no law", "give an exponent > 0");
    }
  } else if (name == "weights") {
    result.kind = PopularityKind::weights;
    result.path = value;
  } else if (name == "servegen") {
    result.kind = PopularityKind::servegen;
    const size_t hash = value.rfind('#');
    result.path = value.substr(0, hash);
    if (hash != value.npos) result.model = value.substr(hash + 1);
  } else {
    static const std::vector<std::string> kLaws = {"zipf", "power", "weights", "servegen"};
    throw InputError(place, fmt::format("unknown law {}", shown(text)),
                     did_you_mean(name, kLaws, kPopularityForms));
  }
  return result;
}

AdapterMix::AdapterMix(std::vector<TraceAdapter> adapters, const std::vector<double>& shares)
    : adapters_(std::move(adapters)), shares_(shares), cumulated_{cumulate(shares)} {
  LORATORY_ASSERT(adapters_.size() == shares.size(), "one share per adapter");
  const double sum = cumulated_[0].back();
  LORATORY_ASSERT(sum > 0, "some adapter must have a share");
  for (double& share : shares_) share /= sum;
}

AdapterMix::AdapterMix(std::vector<TraceAdapter> adapters, const ClientLoad& load)
    : adapters_(std::move(adapters)), shares_(load.names.size(), 0.0) {
  LORATORY_ASSERT(adapters_.size() == load.names.size(), "one adapter per client");
  std::vector<double> rates(load.names.size());
  double sum = 0;
  for (const auto& window : load.windows) {
    for (size_t i = 0; i < rates.size(); ++i) {
      rates[i] = window[i].rate_rps;
      shares_[i] += rates[i];
      sum += rates[i];
    }
    cumulated_.push_back(cumulate(rates));
  }
  for (double& share : shares_) share /= sum;
  // Nobody asked in this window, but a trace may: it then gets the mean shares.
  for (auto& sums : cumulated_) {
    if (sums.back() <= 0) sums = cumulate(shares_);
  }
}

AdapterIndex AdapterMix::pick(double u, int64_t time_ns) const {
  const auto window = size_t(time_ns / kClientWindowNs) % cumulated_.size();
  const std::vector<double>& sums = cumulated_[window];
  const auto it = std::upper_bound(sums.begin(), sums.end(), u * sums.back());
  // Among subnormal sums u * sum may round up to the sum itself: then the last adapter with a share
  // is meant, which is the first to reach the sum.
  const auto last = std::lower_bound(sums.begin(), sums.end(), sums.back());
  return AdapterIndex(std::min(it, last) - sums.begin());
}

AdapterMix make_adapter_mix(const Popularity& popularity, uint32_t num_adapters,
                            const std::vector<uint32_t>& ranks) {
  if (popularity.kind == PopularityKind::weights) {
    return mix_from_weights(popularity, num_adapters, ranks);
  }
  if (popularity.kind == PopularityKind::servegen) {
    return mix_from_clients(popularity, num_adapters, ranks);
  }
  if (num_adapters == 0) {
    throw InputError("--adapters", "the number of adapters is missing", "give --adapters N");
  }
  std::vector<TraceAdapter> adapters = numbered_adapters(num_adapters);
  std::vector<double> shares;
  for (uint32_t i = 0; i < num_adapters; ++i) {
    shares.push_back(share_of(popularity, i, num_adapters));
  }
  deal_ranks(adapters, ranks);
  return AdapterMix(std::move(adapters), shares);
}

}  // namespace loratory::sim
