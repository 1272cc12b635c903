#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace loratory::reference {

/// How a checkpoint stores the linear layers of its decoder. Embeddings, lm_head, norms and routers
/// stay in the model's type.
struct WeightQuantization {
  std::string method;        ///< as shown: "fp8", "awq", "gptq", "mxfp4"
  int64_t bits = 0;          ///< of one weight; 0 = not quantised
  bool is_float = false;     ///< FP8 or FP4; else integers
  bool activations = false;  ///< activations have 8 bits too: products run at the 8-bit rate

  /// Weights that share a factor: block_rows outputs x block_columns inputs. 0 = all of them: a
  /// factor for each row is {1, 0}, one for the matrix {0, 0}, groups of 128 are {1, 128}.
  int64_t block_rows = 0, block_columns = 0;
  int64_t factor_bytes = 4;
  bool zero_points = false;  ///< one of `bits` for each factor
  bool input_order = false;  ///< a 4-byte group index for each input (GPTQ)

  bool experts_only = false;         ///< attention and dense MLPs keep the model's type
  std::vector<std::string> ignored;  ///< modules that do: names, beginnings, '*' for anything
  std::vector<std::string> not_understood;  ///< entries of that list with other regular expressions
  bool has_kv_scheme = false;               ///< the checkpoint asks for an FP8 KV cache
};

/// Is the module of this path ("model.layers.3.self_attn.q_proj") left in the model's type? An
/// entry counts if its dotted names stand in the path side by side. Cost: entries x length.
bool is_ignored(const WeightQuantization& quantization, std::string_view path);

/// Bytes of a matrix [rows, columns] as stored: weights, factors, zero points and group indices.
/// Requires bits > 0.
int64_t quantized_bytes(const WeightQuantization& quantization, int64_t rows, int64_t columns);

/// What an engine makes of bf16 weights when it quantises them itself: FP8 with one factor for each
/// matrix, activations too (vLLM 0.33, model_executor/layers/quantization/fp8.py).
WeightQuantization fp8_on_load();

}  // namespace loratory::reference
