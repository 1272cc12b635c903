#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "scheduler_sim/trace/trace.hpp"
#include "scheduler_sim/workload/arrivals.hpp"
#include "scheduler_sim/workload/length_law.hpp"
#include "scheduler_sim/workload/popularity.hpp"
#include "scheduler_sim/workload/sessions.hpp"

namespace loratory::sim {

/// `count` adapters, each a Poisson stream (or one of GenerateOptions::arrivals.cv) of its own.
struct AdapterRates {
  double rate_rps = 0;
  uint32_t count = 0;
};

/// "RATE:COUNT,RATE:COUNT,...": e.g. 0.1:32,0.05:32,0.025:32 as in Agullo et al., arXiv 2508.08343.
/// Throws InputError at `place`.
std::vector<AdapterRates> parse_adapter_rates(std::string_view text,
                                              std::string_view place = "--adapter-rates");

enum class ArrivalSource : uint8_t {
  shared,         ///< one stream of `arrivals`; every request draws its adapter
  per_adapter,    ///< one stream per adapter: its share of arrivals.rate_rps, with arrivals.cv
  adapter_rates,  ///< one stream per adapter of `adapter_rates`, with arrivals.cv
  clients,        ///< the rates and gap laws of the table of a servegen popularity
  trace,          ///< the times of `arrivals_from`
};

struct GenerateOptions {
  uint64_t seed = 0;

  ArrivalSource source = ArrivalSource::shared;
  ArrivalLaw arrivals;
  std::vector<AdapterRates> adapter_rates;
  const Trace* arrivals_from = nullptr;
  double rate_scale = 1;  ///< multiplies every rate
  ArrivalLimit limit;

  Popularity popularity;        ///< not used by kAdapterRates
  uint32_t num_adapters = 0;    ///< 0 = all requests ask for the base model (or as the file says)
  std::vector<uint32_t> ranks;  ///< dealt in turn, see make_adapter_mix

  LengthLaw prompt_tokens, output_tokens;
  const Trace* lengths_from = nullptr;  ///< takes (prompt, output) pairs of its rows instead
  bool lengths_in_order = false;        ///< row i mod size for request i; otherwise a row at random

  SessionOptions sessions;  ///< with more than one turn, prompt_tokens is one message

  /// Called once every 4,096 requests whose lengths are drawn, of `total`; arrivals come before.
  std::function<void(uint64_t done, uint64_t total)> on_progress;
};

/// A trace made from laws. The same options give the same bytes on any machine; `source` and
/// `format` are "generated", `checksum` is trace_checksum. Each part (arrivals, adapters, lengths,
/// sessions) draws from its own streams. Drawn times are whole microseconds, to keep files short.
/// Throws InputError for options that contradict each other (named by their flags) and for what
/// the files say. Cost: O(requests log streams + block ids).
Trace generate(const GenerateOptions& options);

/// "xxh3:<16 hex digits>" over requests, adapters and content, in a fixed byte order.
std::string trace_checksum(const Trace& trace);

}  // namespace loratory::sim
