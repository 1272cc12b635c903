#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler_sim/trace/trace.hpp"
#include "scheduler_sim/workload/client_load.hpp"

namespace loratory::sim {

enum class PopularityKind : uint8_t { uniform, zipf, power, weights, servegen };

/// How requests spread over adapters, as written in a flag. With N adapters, adapter i = 0 .. N-1:
///   uniform          share 1/N
///   zipf:A           share proportional to (i+1)^-A, A >= 0
///   power:A          share ((i+1)/N)^A - (i/N)^A, A > 0: numpy's power(A), as S-LoRA's benchmarks
///                    draw adapters. A = 1 is uniform, A < 1 favours the first; it is not Zipf.
///   weights:FILE     rows `name weight [rank]`, separated by blanks or commas
///   servegen:FILE[#MODEL]  the clients of a table of ServeGen, the busiest first, each an adapter;
///                    shares change every 600 s as the clients' rates do
struct Popularity {
  PopularityKind kind = PopularityKind::uniform;
  double exponent = 0;  ///< A of zipf and power
  std::string path;     ///< of weights and servegen
  std::string model;    ///< of servegen; empty = all

  std::string text() const;  ///< as it would be written in a flag
};

/// Throws InputError at `place` (the name of the flag).
Popularity parse_popularity(std::string_view text, std::string_view place = "--popularity");

/// The adapters of a workload and their shares of the requests over time.
class AdapterMix {
 public:
  /// `shares` are relative, one per adapter, >= 0 with a sum > 0, the same at all times.
  AdapterMix(std::vector<TraceAdapter> adapters, const std::vector<double>& shares);
  /// One set of shares per client window.
  AdapterMix(std::vector<TraceAdapter> adapters, const ClientLoad& load);

  const std::vector<TraceAdapter>& adapters() const { return adapters_; }
  /// The adapter whose stretch of the cumulated shares at `time_ns` holds u, 0 < u < 1.
  /// After the last window the first one comes again. Cost: a binary search.
  AdapterIndex pick(double u, int64_t time_ns) const;
  /// Mean share of an adapter over all windows, each window weighted by its rate.
  double share(AdapterIndex adapter) const { return shares_[adapter]; }

 private:
  std::vector<TraceAdapter> adapters_;
  std::vector<double> shares_;
  std::vector<std::vector<double>> cumulated_;  ///< per window; the last entry is the sum
};

/// The mix of `num_adapters` adapters (0: as many as the file has), named `adapter-000`, ... or as
/// the file names them. Adapter i has rank ranks[i % size]: dealt in turn, so that every rank gets
/// its exact share of adapters; a rank in the file wins. Empty `ranks`: rank 0, unknown.
/// Throws InputError (a file's place, or "--adapters").
AdapterMix make_adapter_mix(const Popularity& popularity, uint32_t num_adapters,
                            const std::vector<uint32_t>& ranks);

}  // namespace loratory::sim
