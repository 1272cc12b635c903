#pragma once

#include <cstdint>

#include "scheduler_sim/workload/random.hpp"

namespace loratory::sim {

/// Tokens of one request.
struct RequestLength {
  uint32_t prompt_tokens = 1, output_tokens = 1;
};

/// The lengths that serving benchmarks draw from ShareGPT (vLLM, benchmarks/benchmark_serving.py,
/// sample_sharegpt_requests): the first two turns of a piece of a conversation, at least 4 tokens
/// each, a prompt of at most 1,024 and both of at most 2,048 together.
///
/// A piece begins with a person (then the prompt is short and the answer long) or in the middle of
/// a conversation, with the model (then it is the other way round): prompt and output are
/// anticorrelated, and two independent laws misjudge both. Turns of people and of models have a law
/// each, drawn by inversion. Their shapes are those of 30,731 turns (microsoft/sarathi-serve,
/// data/processed_traces/sharegpt_8k_filtered_stats_llama2_tokenizer.csv, Apache-2.0), stretched so
/// that mean and quartiles come out as published for the whole set (Llama 2's tokenizer: prompts
/// 251, 23 and 423, outputs 231, 27 and 359). Outputs end at 1,024 tokens, as that set's turns do.
class ShareGptLengths {
 public:
  /// Scaled to these means, because tokenizers differ.
  ShareGptLengths(double mean_prompt_tokens, double mean_output_tokens);
  /// False: what is within the limits has other means, by more than 5 %, whatever the scale.
  bool have_means() const { return have_means_; }

  RequestLength draw(const RandomStream& stream, uint64_t index) const;

 private:
  struct Turns {
    double prompt, output;
  };
  Turns lacking() const;
  void scale_by(Turns factors);
  static double error_of(Turns factors);
  static Turns draw_turns(const RandomStream& stream, uint64_t index, uint64_t attempt);
  /// `first` is attempt 0.
  RequestLength scaled(Turns first, const RandomStream& stream, uint64_t index) const;

  Turns means_;
  double prompt_scale_ = 1, output_scale_ = 1;
  bool have_means_ = false;
};

}  // namespace loratory::sim
