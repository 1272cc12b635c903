#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/parallel/linear_layers.hpp"

// The two ends of a model on P tp_ranks, whose base weights are cut along the vocabulary: V
// tokens, padded to V' = P·Vp; tp_rank p holds those of [p·Vp, (p+1)·Vp). Conventions as in
// linear_layers.hpp.

namespace loratory::reference {

/// Tokens to hidden states.
///
///   local    y_p = W_e[id] where the token is tp_rank p's, else 0
///   reduce   y, exact: one part is not 0 (but -0.0 becomes +0.0 for P > 1, delta or none)
///   local    y += scaling · A_e[:, id] B_e^T on every tp_rank, A_e and B_e whole
///
/// Delta before the reduce would be counted P times.
/// Errors    also InputError: an id outside [0, V), base tokens included.
/// Source    statements [1.28], [1.29], [3.14].
struct EmbeddingLayer {
  LayerShards shards;  ///< replicated_shards(parallel, V, H)
  int64_t padded_vocab = 0;

  /// InputError: P does not divide padded_vocab; padded_vocab < vocab.
  EmbeddingLayer(const ParallelConfig& parallel, int64_t vocab, int64_t hidden,
                 int64_t padded_vocab);

  struct Input {
    std::span<const int64_t> token_ids;     ///< [T]
    std::span<const int32_t> slots;         ///< [T]
    ConstTensorView weight;                 ///< [V, H]
    std::span<const LocalBuffers> buffers;  ///< [P]
    NumericMode mode{};
  };
  /// [T, H] on every tp_rank, in the dtype of the weight.
  std::vector<Tensor> run(const Input& in) const;
};

/// Where the delta of lm_head is added.
enum class LogitsForm : uint8_t {
  by_shard,      ///< to each shard, B cut like the base weight: less memory
  after_gather,  ///< to the gathered logits, A and B whole
};

/// Hidden states to logits. Rows are rows of logits; LayerInput.slots their slots, from the
/// sampler mapping and not from the tokens [1.30].
///
///   by_shard      local  y_p = W_p x + bias_p + scaling · h B_p^T ; gather ; cut off the padding
///   after_gather  local  y_p = W_p x + bias_p ; gather ; y += scaling · h B^T ; cut off the
///   padding
///
/// Both give the same bits: each logit meets its own row of B either way.
/// Errors    also InputError: skip_bias_add, since nobody behind the logits would add the bias.
/// Source    statements [1.30], [3.15]; vLLM after the gather, TokenSpeed by shard.
struct LogitsLayer {
  LogitsForm form;
  LayerShards base;    ///< vocab_shards: of the base weight, and of B by shard
  LayerShards shards;  ///< of A and B: what LocalBuffers are made for

  /// InputError: P does not divide padded_vocab; padded_vocab < vocab.
  LogitsLayer(LogitsForm logits_form, const ParallelConfig& parallel, int64_t hidden, int64_t vocab,
              int64_t padded_vocab);

  /// [rows, V] on every tp_rank.
  std::vector<Tensor> run(const LayerInput& in) const;
};

}  // namespace loratory::reference
