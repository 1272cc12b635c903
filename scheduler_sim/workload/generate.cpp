#include "scheduler_sim/workload/generate.hpp"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <cmath>
#include <utility>

#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/text.hpp"
#include "scheduler_sim/workload/adapter_assignment.hpp"
#include "scheduler_sim/workload/random.hpp"
#include "scheduler_sim/workload/text_table.hpp"

namespace loratory::sim {
namespace {

struct AdaptersAndArrivals {
  std::vector<TraceAdapter> adapters;
  std::vector<Arrival> arrivals;
};

AdapterMix one_base_model() { return AdapterMix({TraceAdapter{}}, {1.0}); }

bool has_adapters(const GenerateOptions& options) {
  return options.num_adapters != 0 || options.popularity.kind == PopularityKind::weights ||
         options.popularity.kind == PopularityKind::servegen;
}

// One adapter stream per entry of the list: the shares are the rates.
AdaptersAndArrivals arrivals_at_adapter_rates(const GenerateOptions& options) {
  std::vector<double> rates_rps;
  for (const AdapterRates& group : options.adapter_rates) {
    rates_rps.insert(rates_rps.end(), group.count, group.rate_rps * options.rate_scale);
  }
  const auto num_adapters = uint32_t(rates_rps.size());
  const AdapterMix mix = make_adapter_mix({}, num_adapters, options.ranks);
  return {mix.adapters(),
          adapter_arrivals(rates_rps, options.arrivals.cv, options.limit, options.seed)};
}

AdaptersAndArrivals arrivals_of_clients(const GenerateOptions& options) {
  if (options.popularity.kind != PopularityKind::servegen) {
    throw InputError("--arrivals", "only a table of clients has arrivals of its own",
                     "give --popularity servegen:FILE");
  }
  const Popularity& popularity = options.popularity;
  const ClientLoad load = make_client_load(read_client_windows(popularity.path), popularity.model,
                                           options.num_adapters, popularity.path);
  AdaptersAndArrivals result;
  for (size_t i = 0; i < load.names.size(); ++i) {
    const uint32_t rank = options.ranks.empty() ? 0 : options.ranks[i % options.ranks.size()];
    result.adapters.push_back({load.names[i], rank});
  }
  result.arrivals = client_arrivals(load, options.rate_scale, options.limit, options.seed);
  return result;
}

std::vector<Arrival> arrivals_of_mix(const GenerateOptions& options, const AdapterMix& mix) {
  ArrivalLaw law = options.arrivals;
  law.rate_rps *= options.rate_scale;
  if (options.source == ArrivalSource::shared) {
    return shared_arrivals(law, mix, options.limit, options.seed);
  }
  if (options.source == ArrivalSource::per_adapter) {
    std::vector<double> rates_rps;
    for (AdapterIndex i = 0; i < mix.adapters().size(); ++i) {
      rates_rps.push_back(law.rate_rps * mix.share(i));
    }
    return adapter_arrivals(rates_rps, law.cv, options.limit, options.seed);
  }
  LORATORY_ASSERT(options.arrivals_from != nullptr, "kTrace needs a trace");
  Trace times;
  times.requests = options.arrivals_from->requests;
  scale_rate(times, options.rate_scale);
  return trace_arrivals(times, mix, options.limit, options.seed);
}

AdaptersAndArrivals make_arrivals(const GenerateOptions& options) {
  if (options.source == ArrivalSource::adapter_rates) return arrivals_at_adapter_rates(options);
  if (options.source == ArrivalSource::clients) return arrivals_of_clients(options);
  if (!has_adapters(options)) return {{}, arrivals_of_mix(options, one_base_model())};
  const AdapterMix mix = make_adapter_mix(options.popularity, options.num_adapters, options.ranks);
  return {mix.adapters(), arrivals_of_mix(options, mix)};
}

class LengthSource {
 public:
  explicit LengthSource(const GenerateOptions& options)
      : options_(options),
        prompt_(options.seed, Purpose::prompt_tokens),
        output_(options.seed, Purpose::output_tokens),
        rows_(options.seed, Purpose::sampled_rows) {
    if (options.lengths_from != nullptr && options.lengths_from->requests.empty()) {
      throw InputError("--lengths-from", "the trace has no request", "give one with lengths");
    }
  }

  void set_lengths(TraceRequest& request, uint64_t i) const {
    if (options_.lengths_from == nullptr) {
      request.prompt_tokens = options_.prompt_tokens.quantile(prompt_.unit(i));
      request.output_tokens = options_.output_tokens.quantile(output_.unit(i));
      return;
    }
    const auto& rows = options_.lengths_from->requests;
    const TraceRequest& row =
        rows[options_.lengths_in_order ? i % rows.size() : rows_.below(rows.size(), i)];
    request.prompt_tokens = row.prompt_tokens;
    request.output_tokens = row.output_tokens;
  }

 private:
  const GenerateOptions& options_;
  RandomStream prompt_, output_, rows_;
};

class FieldHash {
 public:
  FieldHash() { XXH3_64bits_reset(&state_); }
  template <typename Integer>
  void add(Integer value) {
    unsigned char bytes[sizeof(Integer)];
    for (size_t i = 0; i < sizeof(Integer); ++i) {
      bytes[i] = static_cast<unsigned char>(uint64_t(value) >> (8 * i));
    }
    XXH3_64bits_update(&state_, bytes, sizeof bytes);
  }
  void add(const std::string& text) {
    add(uint64_t{text.size()});
    XXH3_64bits_update(&state_, text.data(), text.size());
  }
  uint64_t digest() const { return XXH3_64bits_digest(&state_); }

 private:
  XXH3_state_t state_;
};

}  // namespace

std::vector<AdapterRates> parse_adapter_rates(std::string_view text, std::string_view place) {
  std::vector<AdapterRates> groups;
  for (const std::string_view group : split(text, ',')) {
    const auto parts = split(group, ':');
    if (parts.size() != 2) {
      throw InputError(place, fmt::format("'{}' is not RATE:COUNT", group),
                       "write it like 0.1:32,0.05:64");
    }
    const double count = parse_number(parts[1], "count", place);
    if (count < 1 || count > 1e6 || count != std::floor(count)) {
      throw InputError(place, fmt::format("'{}' is not a number of adapters", parts[1]),
                       "it must lie in 1 .. 1000000");
    }
    groups.push_back({parse_number(parts[0], "rate", place), uint32_t(count)});
  }
  return groups;
}

Trace generate(const GenerateOptions& options) {
  constexpr size_t kRequestsPerCall = 4096;
  check_rate_scale(options.rate_scale);
  const AdaptersAndArrivals made = make_arrivals(options);
  Trace trace;
  const LengthSource lengths(options);
  const bool drawn_times = options.source != ArrivalSource::trace;
  trace.requests.resize(made.arrivals.size());
  for (size_t i = 0; i < made.arrivals.size(); ++i) {
    TraceRequest& request = trace.requests[i];
    request.arrival_ns =
        drawn_times ? made.arrivals[i].time_ns / 1000 * 1000 : made.arrivals[i].time_ns;
    request.adapter = made.adapters.empty() ? kBaseModel : made.arrivals[i].adapter;
    lengths.set_lengths(request, i);
    if (options.on_progress && (i + 1) % kRequestsPerCall == 0) {
      options.on_progress(i + 1, made.arrivals.size());
    }
  }
  set_adapters(trace, made.adapters);
  const SessionOptions& sessions = options.sessions;
  if (sessions.block_tokens != 0 || sessions.mean_turns > 1 || sessions.num_system_prompts != 0) {
    add_sessions(trace, sessions, options.seed);
  }
  trace.source = trace.format = "generated";
  trace.checksum = trace_checksum(trace);
  return trace;
}

std::string trace_checksum(const Trace& trace) {
  FieldHash hash;
  for (const TraceRequest& r : trace.requests) {
    hash.add(r.arrival_ns);
    hash.add(r.cancel_ns);
    hash.add(r.content_count);
    hash.add(r.prompt_tokens);
    hash.add(r.output_tokens);
    hash.add(r.adapter);
    hash.add(r.priority);
    hash.add(r.session);
  }
  for (const TraceAdapter& adapter : trace.adapters) {
    hash.add(adapter.name);
    hash.add(adapter.rank);
  }
  hash.add(trace.block_tokens);
  for (const uint64_t id : trace.block_ids) hash.add(id);
  for (const int32_t id : trace.token_ids) hash.add(id);
  return fmt::format("xxh3:{:016x}", hash.digest());
}

}  // namespace loratory::sim
