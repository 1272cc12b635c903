#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "reference/adapter/path_pattern.hpp"

namespace loratory::reference {

/// `target_modules: "all-linear"`: every projection of the decoder layers, not lm_head.
struct AllLinear {};

/// A list of names that end a path (names_path), one regular expression for the whole path, or all
/// linear layers.
using ModuleSelection = std::variant<std::vector<std::string>, PathPattern, AllLinear>;

struct RankPattern {
  PathPattern pattern;
  int64_t rank;
};

struct AlphaPattern {
  PathPattern pattern;
  double alpha;
};

struct RankAndAlpha {
  int64_t rank = 8;
  std::string_view rank_field = "r";  ///< where the rank stands: "r" or "rank_pattern"
  double alpha = 8;
};

/// What the patterns of one configuration may cost [4.7]: 2^20 steps and 2^15 for each module of
/// the adapter, 2^26 in all.
StepBudget step_budget(size_t num_modules);

/// The fields of adapter_config.json that decide what an adapter computes [4.4]-[4.7].
///
/// A path is the key of a tensor without "base_model.model." and without the lora suffix, as PEFT
/// sees the module: "model.layers.0.self_attn.q_proj".
struct AdapterConfig {
  int64_t rank = 8;
  double alpha = 8;
  bool use_rslora = false;
  std::vector<RankPattern> rank_pattern;    ///< in file order; the first that matches counts
  std::vector<AlphaPattern> alpha_pattern;  ///< searched independently of rank_pattern
  ModuleSelection target_modules;
  std::optional<ModuleSelection> exclude_modules;
  std::vector<std::string> target_parameters;
  std::vector<int64_t> layers_to_transform;  ///< empty = all; needs target_modules to be a list
  std::vector<std::string> layers_pattern;   ///< names of the list of layers; empty = any
  std::string base_model_name;               ///< "" = not given
  std::vector<std::string> warnings;         ///< one line each: unknown fields

  /// Of one module, after rank_pattern and alpha_pattern.
  RankAndAlpha rank_and_alpha_of(std::string_view path, StepBudget& budget) const;
  /// alpha / r, or alpha / sqrt(r) for rsLoRA, with the r and alpha of this module; in double,
  /// rounded once [1.10]. alpha may be 0 or negative. Throws E_CONFIG(lora_alpha) if the quotient
  /// is not finite in fp32.
  float scaling_of(std::string_view path, const RankAndAlpha& module) const;

  /// Does target_modules, exclude_modules, layers_to_transform and layers_pattern let a tensor of
  /// this module exist? `is_linear`: a projection of a decoder layer. The layer is, as in PEFT, the
  /// last number in the path that follows a name (of layers_pattern, if given): the expert's in
  /// "layers.0.mlp.experts.5.up_proj" without layers_pattern.
  bool targets(std::string_view path, bool is_linear, StepBudget& budget) const;
};

struct ConfigOptions {
  /// Accept init_lora_weights of the kinds that replace the base weight by a residual (pissa,
  /// corda, olora, lora_ga, loftq): the caller knows that its base model is the residual [1.52].
  bool assume_residual_base = false;
};

/// Parses adapter_config.json. Unknown and ignorable fields warn or pass; a field of [1.52] that
/// would change the result is E_UNSUPPORTED(feature), anything missing or mistyped E_CONFIG(field).
/// At most 4 MiB, and 1024 real regular expressions in each map of patterns.
AdapterConfig parse_adapter_config(std::string_view text, const ConfigOptions& options = {});

/// What save_adapter writes: the fields above, keys sorted, as PEFT does.
std::string adapter_config_text(const AdapterConfig& config);

}  // namespace loratory::reference
