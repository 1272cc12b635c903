#include "reference/model/model_presets.hpp"

#include <array>

namespace loratory::reference {
namespace {

// The parameter counts that follow are tested against the published sizes of the checkpoints.
constexpr std::array<ModelPreset, 13> kPresets{{
    {"Llama-3.1-8B", "meta-llama/Llama-3.1-8B", R"({
      "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
      "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000,
      "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
      "high_freq_factor": 4, "original_max_position_embeddings": 8192},
      "tie_word_embeddings": false, "eos_token_id": 128001, "torch_dtype": "bfloat16"})"},
    {"Llama-3-70B", "meta-llama/Meta-Llama-3-70B", R"({
      "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
      "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
      "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 500000,
      "tie_word_embeddings": false, "eos_token_id": 128001, "torch_dtype": "bfloat16"})"},
    {"Llama-3.2-1B", "meta-llama/Llama-3.2-1B", R"({
      "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
      "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
      "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000,
      "rope_scaling": {"rope_type": "llama3", "factor": 32, "low_freq_factor": 1,
      "high_freq_factor": 4, "original_max_position_embeddings": 8192},
      "tie_word_embeddings": true, "eos_token_id": 128001, "torch_dtype": "bfloat16"})"},
    {"Llama-3.2-3B", "meta-llama/Llama-3.2-3B", R"({
      "model_type": "llama", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
      "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
      "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000,
      "rope_scaling": {"rope_type": "llama3", "factor": 32, "low_freq_factor": 1,
      "high_freq_factor": 4, "original_max_position_embeddings": 8192},
      "tie_word_embeddings": true, "eos_token_id": 128001, "torch_dtype": "bfloat16"})"},
    {"Llama-2-7B", "meta-llama/Llama-2-7b-hf", R"({
      "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000,
      "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_theta": 10000,
      "tie_word_embeddings": false, "eos_token_id": 2, "torch_dtype": "float16"})"},
    {"Llama-2-13B", "meta-llama/Llama-2-13b-hf", R"({
      "model_type": "llama", "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40,
      "num_attention_heads": 40, "num_key_value_heads": 40, "vocab_size": 32000,
      "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_theta": 10000,
      "tie_word_embeddings": false, "eos_token_id": 2, "torch_dtype": "float16"})"},
    {"Mistral-7B", "mistralai/Mistral-7B-v0.3", R"({
      "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32768,
      "max_position_embeddings": 32768, "rms_norm_eps": 1e-05, "rope_theta": 1000000, "sliding_window": null,
      "tie_word_embeddings": false, "eos_token_id": 2, "torch_dtype": "bfloat16"})"},
    {"Qwen2.5-7B", "Qwen/Qwen2.5-7B", R"({
      "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
      "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
      "max_position_embeddings": 131072, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
      "tie_word_embeddings": false, "eos_token_id": 151643, "torch_dtype": "bfloat16"})"},
    {"Qwen2.5-14B", "Qwen/Qwen2.5-14B", R"({
      "model_type": "qwen2", "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 48,
      "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 152064,
      "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 1000000,
      "tie_word_embeddings": false, "eos_token_id": 151643, "torch_dtype": "bfloat16"})"},
    {"Qwen2.5-32B", "Qwen/Qwen2.5-32B", R"({
      "model_type": "qwen2", "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64,
      "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 152064,
      "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 1000000,
      "tie_word_embeddings": false, "eos_token_id": 151643, "torch_dtype": "bfloat16"})"},
    {"Qwen3-4B", "Qwen/Qwen3-4B", R"({
      "model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
      "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
      "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
      "tie_word_embeddings": true, "eos_token_id": 151645, "torch_dtype": "bfloat16"})"},
    {"Qwen3-8B", "Qwen/Qwen3-8B", R"({
      "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
      "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
      "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
      "tie_word_embeddings": false, "eos_token_id": 151645, "torch_dtype": "bfloat16"})"},
    {"Qwen3-32B", "Qwen/Qwen3-32B", R"({
      "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64,
      "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
      "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
      "tie_word_embeddings": false, "eos_token_id": 151645, "torch_dtype": "bfloat16"})"},
}};

}  // namespace

std::span<const ModelPreset> model_presets() { return kPresets; }

}  // namespace loratory::reference
