#pragma once

namespace loratory::sim {

/// What the client sees of a server beside the engine's steps.
struct ServerTerms {
  /// From a request's arrival until the scheduler has it, and from a token until it is on its way:
  /// HTTP, tokenizer, two processes.
  double frontend_ms = 0;
  /// Outputs end where the model says so. A constant hazard per token: the output has min(asked
  /// for, an exponential draw of this mean) tokens; 0 = as many as were asked for.
  double mean_tokens_to_stop = 0;
  /// Answering /metrics: this, plus so much for each set of running and waiting adapters that was
  /// ever reported, and for each name in it (vLLM 0.8 keeps a time series for each set, with the
  /// names in its labels: v1/metrics/loggers.py, vllm:lora_requests_info). Only where the client
  /// reads it (MeasuredClient::poll_interval_s).
  double metrics_ms = 0;
  double metrics_us_per_adapter_set = 0;
  double metrics_us_per_name = 0;

  friend bool operator==(const ServerTerms&, const ServerTerms&) = default;
};

}  // namespace loratory::sim
