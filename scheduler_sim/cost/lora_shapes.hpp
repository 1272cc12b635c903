#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler_sim/cost/model_spec.hpp"
#include "scheduler_sim/cost/module_shapes.hpp"

namespace loratory::sim {

/// Which modules adapters target. Default "all-linear": every linear layer of the decoder, which is
/// q, k, v, o, gate, up, down on most models.
class LoraTargets {
 public:
  LoraTargets() : LoraTargets(std::string_view("all-linear")) {}
  /// A comma list of module names ("q_proj" or "q") and "all-linear", e.g.
  /// "all-linear,embed_tokens,lm_head". Throws InputError for an unknown or empty name.
  explicit LoraTargets(std::string_view list);

  bool contains(std::string_view module) const;
  std::string to_string() const;
  /// Throws InputError if the model lacks a module that was given by name.
  void require_modules_of(const ModelSpec& model) const;

 private:
  std::vector<std::string_view> names_;  // in the order of kModules, no duplicates
  std::vector<std::string_view> given_;  // of those, what was named and not part of "all-linear"
};

/// The targeted modules of `model` as one of `tp` GPUs holds them: matrices A [r, in] and
/// B [out, r] per module. Column cut: out / tp, A replicated. Row cut: in / tp, B replicated.
/// (The default mode of vLLM, not its fully sharded one.)
std::vector<ModuleShape> lora_shapes(const ModelSpec& model, const LoraTargets& targets,
                                     int tp = 1);

/// Parameters per unit of rank, sum over modules of count * (in + out).
int64_t lora_parameters_per_rank(const ModelSpec& model, const LoraTargets& targets, int tp = 1);

/// In what adapters are kept on every tier: the model's own type, or FP8 with one factor for each
/// matrix (the factors, 4 bytes each, are not counted).
enum class LoraDtype : uint8_t { of_model, fp8 };

/// Bytes of one number of A or B.
int64_t lora_dtype_bytes(const ModelSpec& model, LoraDtype dtype);

/// Bytes of one adapter of its true rank, whole: what a load reads and the CPU tier keeps.
int64_t adapter_bytes(const ModelSpec& model, const LoraTargets& targets, int64_t rank,
                      LoraDtype dtype = LoraDtype::of_model);

}  // namespace loratory::sim
