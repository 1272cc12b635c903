#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "reference/adapter/adapter.hpp"
#include "reference/model/model.hpp"

// Small models and adapters with random numbers: what properties and engine tests run on. All of
// them follow from their arguments alone, on every machine.

namespace loratory::reference {

/// 2 layers, hidden 64, 4 heads of 16 in 2 groups, a vocabulary of 256; dense, RoPE unscaled.
ModelConfig tiny_model_config();

/// Turns the MLP of every layer (of every second one if `sparse`) of a model into experts.
ModelConfig with_experts(ModelConfig config, int64_t num_experts, int64_t experts_per_token,
                         bool sparse = false);

/// Sizes, biases, q and k norms, experts, tied embeddings and RoPE scaling from a seed. Hidden is
/// at most 24, the vocabulary at most 40.
ModelConfig random_model_config(uint64_t seed);

/// Weights of size 1/sqrt(K), norms near 1; logits a few units wide.
Model random_model(const ModelConfig& config, uint64_t seed);

/// The configuration without experts.
ModelConfig dense(ModelConfig config);

/// A model without shared experts, every weight rounded to a dtype, as an engine in that dtype has
/// it.
Model in_dtype(Model model, Dtype dtype);

struct RandomAdapterOptions {
  int64_t rank = 4;
  double alpha = 8;
  bool use_rslora = false;
  bool attention = true, mlp = true, experts = true, embed_tokens = false, lm_head = false;
  /// Modules are left out, and ranks differ (rank_pattern), with some chance each.
  bool ragged = false;
  Dtype dtype = Dtype::f32;  ///< f32, f16, bf16
  bool fits_fp8 = false;     ///< slots of fp8 hold its numbers exactly
};

/// Which of the options are set, from a seed; rank 1..4.
RandomAdapterOptions random_adapter_options(uint64_t seed);

/// An adapter in memory with the bytes that its views show.
struct RandomAdapter {
  std::shared_ptr<const std::string> bytes;
  Adapter adapter;
};

/// Its delta is about as large as what the base model computes, so that a lost one is seen.
RandomAdapter random_adapter(const ModelConfig& config, uint64_t seed,
                             const RandomAdapterOptions& options = {});

/// The same one as a PEFT directory.
void write_random_adapter(const std::string& directory, const ModelConfig& config, uint64_t seed,
                          const RandomAdapterOptions& options = {});

/// Token ids for a model.
std::vector<int32_t> random_tokens(const ModelConfig& config, int64_t count, uint64_t seed);

}  // namespace loratory::reference
