#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "reference/adapter/adapter_config.hpp"
#include "reference/adapter/adapter_key.hpp"
#include "reference/adapter/base_model_shapes.hpp"
#include "reference/adapter/safetensors.hpp"
#include "reference/adapter/weight_scale.hpp"
#include "reference/numerics/tensor.hpp"

namespace loratory::reference {

/// One matrix of a base model: the projection of one layer, of one expert in a MoE layer. A packed
/// layer (qkv, gate_up) is several of them, its slices; one that an adapter lacks is None [1.24].
struct ModuleId {
  int64_t layer = -1;   ///< -1: embed_tokens and lm_head
  int64_t expert = -1;  ///< -1: not in an expert
  Projection projection = Projection::q;

  friend auto operator<=>(const ModuleId&, const ModuleId&) = default;
};

/// "layers.3.self_attn.q_proj", "layers.0.mlp.experts.5.down_proj", "lm_head"
std::string to_string(const ModuleId& id);

/// The delta of one matrix: scaling · B · A, with A [rank, K] and B [N, rank] of the base weight
/// [N, K]. For embed_tokens K is the vocabulary and N the hidden size [1.28].
///
/// A and B are strided views into the file, whatever its layout: several modules may share an A
/// (fused qkv_proj, shared outer experts), B may be a range of rows or every second one. Bits in
/// the type of the file, not yet rounded to any other; dequantize.hpp makes numbers of them.
struct LoraModule {
  ModuleId id;
  ConstTensorView a;
  ConstTensorView b;
  int64_t rank = 0;
  float scaling = 0;
  WeightScale a_scale;  ///< without factors unless A is fp8
  WeightScale b_scale;
};

/// An adapter as loaded: immutable; copies share the mapped file.
struct Adapter {
  AdapterConfig config;
  std::vector<LoraModule> modules;  ///< sorted by id
  int64_t rank = 0;                 ///< the largest of the modules
  std::vector<std::string> warnings;
  SafetensorsFile file;  ///< owns what the views show

  /// nullptr: this adapter leaves the module as it is. Cost: logarithmic.
  const LoraModule* find(const ModuleId& id) const;
};

/// What an engine has switched LoRA on for [4.14].
struct EnabledModules {
  bool attention = true;
  bool mlp = true;
  bool experts = true;
  bool embed_tokens = true;
  bool lm_head = true;
};

struct LoadOptions {
  bool strict = true;               ///< unmatched keys: error (E_KEY); otherwise a warning [4.13]
  int64_t max_lora_rank = 512;      ///< above it: E_RANK
  bool check_finite = true;         ///< look at every weight: E_NONFINITE
  Dtype engine_dtype = Dtype::f32;  ///< weights that overflow when cast to it: E_NONFINITE [4.3]
  EnabledModules enabled;
  bool assume_residual_base = false;  ///< ConfigOptions
  std::string base_model_name;        ///< "" = unknown; another one in the config warns

  /// embed_tokens and lm_head of the base model, [V, H], from the engine that has them. A copy in
  /// the adapter's file must hold the same numbers, else E_UNSUPPORTED(changed_base). Without it
  /// `base_layer.weight` is noted and not compared, a bare `.weight` is
  /// E_UNSUPPORTED(modules_to_save) [4.9].
  std::function<ConstTensorView(Projection)> base_weights;
};

/// Loads a PEFT directory: adapter_config.json and adapter_model.safetensors.
///
/// Either the whole adapter or one AdapterError, which names the key that caused it; nothing else
/// changes [4.17]. Weights are mapped, not copied; check_finite reads them once (so does the
/// overflow check, which it includes).
///
/// Errors besides those of SafetensorsFile, AdapterConfig and adapter_key.hpp:
///   E_IO           a file is missing
///   E_UNSUPPORTED  (pickle) only adapter_model.bin; (attention | mlp | experts | embed_tokens |
///                  lm_head) the module is not enabled; (resized_vocab); (changed_base);
///                  (block_scales)
///   E_KEY          the same module twice, e.g. as qkv_proj and as q_proj
///   E_PAIR         A without B, or the reverse; a scale without its tensor
///   E_SHAPE        a tensor does not fit the base model; no transposition is guessed [4.12]
///   E_DTYPE        not F32, F16, BF16 or an fp8 type with its scale
///   E_CONFIG       (r | rank_pattern) the rank of a tensor is not what the configuration says
///   E_TARGET       a tensor of a module outside of target_modules
///   E_RANK, E_NONFINITE, E_EMPTY
Adapter load_adapter(const std::string& directory, const BaseModelShapes& shapes,
                     const LoadOptions& options = {});

/// The same from what the two files hold; the bytes outlive the adapter, or `file` owns them.
Adapter load_adapter(AdapterConfig config, SafetensorsFile file, const BaseModelShapes& shapes,
                     const LoadOptions& options = {});

/// Writes a PEFT directory (made if it is missing): what load_adapter reads. Same input, same
/// bytes. Each file appears whole or not at all. InputError if the disk refuses.
void save_adapter(const std::string& directory, const AdapterConfig& config,
                  const std::vector<StoredTensor>& tensors);

}  // namespace loratory::reference
