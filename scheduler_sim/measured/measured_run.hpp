#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace loratory::sim {

/// Adapters whose requests come at the same rate.
struct AdapterGroup {
  int64_t count = 0;
  double rate_rps = 0;  ///< of each
};

/// What a load generator reports of a run; NaN = not known. Latencies in milliseconds, over
/// completed requests, as `vllm bench serve` defines them.
struct RunMeasures {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  double completed = kUnknown;   ///< requests that were done when the run ended
  double input_tps = kUnknown;   ///< prompt tokens of completed requests / s
  double output_tps = kUnknown;  ///< their output tokens / s
  double mean_ttft_ms = kUnknown, median_ttft_ms = kUnknown, p99_ttft_ms = kUnknown;
  double mean_tpot_ms = kUnknown, median_tpot_ms = kUnknown, p99_tpot_ms = kUnknown;
  double mean_itl_ms = kUnknown, median_itl_ms = kUnknown, p99_itl_ms = kUnknown;
  double kv_tokens = kUnknown;    ///< what the KV cache holds; 0 = the server did not start
  double weights_gib = kUnknown;  ///< of a GPU: weights and adapter slots, as vLLM loads them

  double total_tps() const { return input_tps + output_tps; }
};

enum class LengthKind : uint8_t {
  constant,  ///< every request has mean_prompt and mean_output tokens
  sharegpt,  ///< ShareGptLengths with these means
  recorded   ///< MeasuredRun::requests, one after the other
};

/// A request as its client saved it.
struct RecordedRequest {
  int64_t sent_ns = -1;  ///< since the first one; -1 = not saved
  uint32_t prompt_tokens = 0, output_tokens = 0;
};

/// The load generator.
struct MeasuredClient {
  double duration_s = 0;     ///< the run ends then, whatever is in flight; 0 = when all are done
  int64_t num_requests = 0;  ///< 0 = as many as arrive in duration_s
  /// > 0: so many requests are always in flight, and no rate is asked for. All come at once from
  /// a server that is idle, then each when another one has ended.
  int64_t concurrency = 0;
  /// Requests that can be in flight: a client on the server's host runs out of ports. What would be
  /// more is never sent. 0 = no limit.
  int64_t max_in_flight = 0;
  /// > 0: /metrics is read so often, and nothing leaves the server meanwhile.
  double poll_interval_s = 0;
};

/// One run of a real server: what was asked of it, and what came out.
struct MeasuredRun {
  std::string place;  ///< "runs.csv:17"
  std::string sweep;  ///< runs of one sweep differ in max_loras alone
  std::string group;  ///< runs whose errors are told together

  std::string model, engine, gpu;  ///< as --model, --engine and --gpu take them
  std::string dtype = "auto";
  int32_t tp = 1;
  int64_t max_loras = 0, max_cpu_loras = 0;  ///< 0 = served without adapters
  int64_t max_lora_rank = 0;
  std::vector<int64_t> ranks;  ///< of the adapters, in turn
  int64_t max_num_seqs = 0, max_num_batched_tokens = 0, max_model_len = 0;  ///< 0 = the engine's
  bool prefix_cache = true;
  bool has_penalties = false;  ///< requests ask for a repetition penalty

  std::vector<AdapterGroup> adapters;  ///< without an adapter: one group of count 0
  LengthKind lengths = LengthKind::constant;
  double mean_prompt_tokens = 0, mean_output_tokens = 0;
  std::vector<RecordedRequest> requests;  ///< in the order in which they were sent
  MeasuredClient client;

  RunMeasures measured;
  RunMeasures other;  ///< another predictor's figures for the same run

  int64_t num_adapters() const {
    int64_t sum = 0;
    for (const AdapterGroup& same : adapters) sum += same.count;
    return sum;
  }
  /// Requests per second of all adapters; 0 = a closed loop, or not known.
  double offered_rps() const {
    double sum = 0;
    for (const AdapterGroup& same : adapters) {
      sum += double(same.count > 0 ? same.count : 1) * same.rate_rps;
    }
    return sum;
  }
  /// False: nothing but the server's start is known.
  bool has_traffic() const {
    const bool is_open = offered_rps() > 0 && (client.duration_s > 0 || client.num_requests > 0);
    return mean_prompt_tokens > 0 && mean_output_tokens > 0 && (is_open || client.concurrency > 0);
  }
};

}  // namespace loratory::sim
