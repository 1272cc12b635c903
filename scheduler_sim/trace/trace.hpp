#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler_sim/time.hpp"

namespace loratory::sim {

/// Index into Trace::adapters; kBaseModel means "no adapter".
using AdapterIndex = uint32_t;
inline constexpr AdapterIndex kBaseModel = std::numeric_limits<uint32_t>::max();

/// One request of a trace, 48 bytes. The order of requests in a Trace is the order of arrival;
/// requests with equal times keep file order.
struct TraceRequest {
  int64_t arrival_ns = 0;      ///< since the start of the trace, >= 0
  int64_t cancel_ns = kNever;  ///< the client gives up at this time, >= arrival_ns
  uint64_t content_begin = 0;  ///< first entry in Trace::block_ids or Trace::token_ids
  uint32_t content_count = 0;  ///< number of entries; 0 = the content is unknown (unique)
  uint32_t prompt_tokens = 0;  ///< >= 1
  uint32_t output_tokens = 0;  ///< tokens that will be generated; 0 = prefill only
  AdapterIndex adapter = kBaseModel;
  int32_t priority = 0;  ///< lower runs first
  uint32_t session = 0;  ///< 0 = none
};

/// Largest rank of an adapter, wherever it comes from.
inline constexpr uint32_t kMaxRank = 65'536;

struct TraceAdapter {
  std::string name;
  uint32_t rank = 0;  ///< 0 = the trace does not say
};

/// A trace in memory: what every reader and generator yields and every consumer takes.
struct Trace {
  std::vector<TraceRequest> requests;  ///< sorted by arrival_ns, stable
  std::vector<TraceAdapter> adapters;  ///< in order of first appearance
  uint32_t block_tokens = 0;           ///< tokens per entry of block_ids; 0 = no block ids
  std::vector<uint64_t> block_ids;     ///< prefix blocks of all requests, one after the other
  std::vector<int32_t> token_ids;      ///< prompt tokens of all requests (exclusive with block_ids)
  std::vector<std::string> ids;        ///< of each request, "" = none; empty = no request has one

  std::string source;              ///< path as given, "-" or "generated"
  std::string format;              ///< name of the format it was read as
  std::string checksum;            ///< "xxh3:<16 hex digits>" of the raw input bytes
  std::vector<std::string> notes;  ///< sentences: what the source left open and the reader assumed
  uint64_t num_rows_skipped = 0;   ///< bad rows left out on request (--skip-bad-rows)

  bool has_content() const { return !block_ids.empty() || !token_ids.empty(); }
  /// What the source of the trace calls request `index`; "" = nothing.
  std::string_view id_of(size_t index) const {
    return ids.empty() ? std::string_view{} : std::string_view(ids[index]);
  }
  std::span<const uint64_t> blocks_of(const TraceRequest& r) const {
    return block_tokens == 0 ? std::span<const uint64_t>{}
                             : std::span(block_ids).subspan(r.content_begin, r.content_count);
  }
  std::span<const int32_t> tokens_of(const TraceRequest& r) const {
    return block_tokens != 0 || token_ids.empty()
               ? std::span<const int32_t>{}
               : std::span(token_ids).subspan(r.content_begin, r.content_count);
  }
};

}  // namespace loratory::sim
