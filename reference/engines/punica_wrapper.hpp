#pragma once

#include <optional>
#include <span>
#include <vector>

#include "reference/base/check.hpp"
#include "reference/layout/batch_layout.hpp"
#include "reference/lora/linear.hpp"

namespace loratory::reference {

/// One scheduled request as update_metadata() is told of it.
struct PunicaRequest {
  std::optional<uint64_t> adapter;  ///< uid; none: base model
  int32_t num_tokens = 0;           ///< scheduled in this step
  bool samples = true;              ///< its last token needs logits
  bool prompt_logprobs = false;     ///< all its tokens need logits

  friend bool operator==(const PunicaRequest&, const PunicaRequest&) = default;
};

/// What a GPU slot holds in this step. `generation` grows at every load into the slot.
struct PunicaSlot {
  std::optional<uint64_t> adapter;
  uint64_t generation = 0;
};

/// The LoRA operations of vLLM: metadata of a step, then any number of layers.
///
/// The operations take the arguments of linear.hpp, whose `slots` are filled in from the metadata:
/// T is the number of tokens with padding. They walk active_lora_ids and token_indices_sorted,
/// skipping -1 wherever it stands [2.7], and do the row arithmetic of shrink() and expand(), so
/// they give its bits. Preset for vLLM's roundings: mode = kVllmMode.
/// Errors   InputError as in linear.hpp.   Repeats  bitwise.   Not thread-safe.
/// Source   statements [2.1]-[2.15]; vLLM, lora/punica_wrapper/punica_gpu.py.
class PunicaWrapper {
 public:
  explicit PunicaWrapper(int32_t max_loras) : max_loras_(max_loras) {}

  /// Builds the arrays of a step: slots of tokens and of rows of logits. Tokens up to
  /// `num_padded_tokens` are padding. vocab_size and extra_vocab_size: of the embedding's A.
  /// Returns false if everything that the arrays depend on is as in the last step, generations of
  /// the slots included [2.11]; then nothing is built.
  /// Errors   InputError, and the arrays stay as they were: an adapter that is in no slot (never
  ///          the base model instead [2.10]) or in two, more slots than max_loras, a negative
  ///          count, too few padded tokens.
  bool update_metadata(std::span<const PunicaRequest> requests, std::span<const PunicaSlot> slots,
                       int32_t num_padded_tokens, int64_t vocab_size, int64_t extra_vocab_size);

  /// shrink(): h[i] of every slice i.
  void add_shrink(const ConstTensorView& x, std::span<const ShrinkSlice> slices,
                  const TensorView& h) const;

  /// expand(): y += or y =. `biases`: none, or one a slice ([L, N_i] of y's dtype, or nothing),
  /// added first; needs add_inputs [1.9].
  using Biases = std::vector<std::optional<ConstTensorView>>;
  void add_expand(const ConstTensorView& h, std::span<const ExpandSlice> slices,
                  int64_t offset_start, bool add_inputs, const NumericMode& mode,
                  const TensorView& y, const Biases& biases = {}) const;

  /// Bias, shrink, expand.
  void add_lora_linear(const ConstTensorView& x, std::span<const LoraSlice> slices,
                       int64_t offset_start, bool add_inputs, const NumericMode& mode,
                       const TensorView& y) const;

  /// A layer of embeddings, A transposed [L, V + extra, R] as vLLM keeps it: h is row
  /// embedding_indices(1)[t] + token_ids[t] of A as [L·(V + extra), R]; then add_expand. Base
  /// tokens gather from slot 0, and nothing of it is used.
  /// Errors   also InputError: an id outside [0, V), or A of another vocabulary.
  void add_lora_embedding(std::span<const int64_t> token_ids, const ConstTensorView& a_transposed,
                          const ExpandSlice& slice, bool add_inputs, const NumericMode& mode,
                          const TensorView& y) const;

  /// Rows of logits instead of tokens: hidden [rows, H], logits [rows, V].
  void add_lora_logits(const ConstTensorView& hidden, const LoraSlice& lm_head,
                       const NumericMode& mode, const TensorView& logits) const;

  const BatchLayout& token_layout() const { return tokens_; }
  const BatchLayout& logits_layout() const { return logits_; }
  /// The token of each row of logits.
  const std::vector<int32_t>& logits_tokens() const { return logits_tokens_; }
  /// [2.14]
  const std::vector<int32_t>& sampler_indices() const { return logits_.token_lora_mapping; }
  const std::vector<int32_t>& sampler_indices_padded() const { return sampler_indices_padded_; }
  /// [2.15] 0: slot·extra vocabulary. 1: slot·(vocabulary + extra). 0 for base tokens.
  const std::vector<int64_t>& embedding_indices(int row) const { return embedding_indices_[row]; }
  /// Of the step that the arrays were built for, slot by slot; a launch may compare [2.12].
  const std::vector<uint64_t>& generations() const {
    LORATORY_ASSERT(key_.has_value(), "there was a step");
    return key_->generations;
  }

 private:
  struct Key {
    std::vector<PunicaRequest> requests;
    std::vector<uint64_t> generations;
    int32_t num_padded_tokens;
    int64_t vocab_size, extra_vocab_size;

    friend bool operator==(const Key&, const Key&) = default;
  };

  void fill_embedding_indices(const Key& key);
  void expand_over(const BatchLayout& layout, ExpandArgs args, const Biases& biases) const;
  void linear_over(const BatchLayout& layout, LinearArgs args) const;

  int32_t max_loras_;
  std::optional<Key> key_;
  BatchLayout tokens_, logits_;
  std::vector<int32_t> logits_tokens_, sampler_indices_padded_;
  std::vector<int64_t> embedding_indices_[2];
};

}  // namespace loratory::reference
