#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler_sim/cost/model_spec.hpp"

namespace loratory::sim {

/// How tensor parallelism cuts a linear layer: its output (column), its input (row), or its
/// vocabulary (embed_tokens keeps the low-rank matrices whole, lm_head cuts its B).
enum class TpCut : uint8_t { column, row, replicated };

/// A linear module of the model: `count` of them, each [out, in].
struct ModuleShape {
  std::string_view name;  ///< PEFT's name without the path: "q_proj"
  int64_t in = 0;
  int64_t out = 0;
  int64_t count = 0;  ///< layers (x experts)
  TpCut cut = TpCut::column;
  int group = 0;           ///< modules of one group run as one packed layer (q|k|v, gate|up)
  bool is_expert = false;  ///< `count` layers x experts, of which a token uses a few
};

/// The modules of `model` that adapters may target, whole (tp = 1).
std::vector<ModuleShape> module_shapes(const ModelSpec& model);

/// Which modules adapters target. Default "all-linear": q, k, v, o, gate, up, down.
class LoraTargets {
 public:
  LoraTargets() : LoraTargets(std::string_view("all-linear")) {}
  /// A comma list of module names ("q_proj" or "q") and "all-linear", e.g.
  /// "all-linear,embed_tokens,lm_head". Throws InputError for an unknown or empty name.
  explicit LoraTargets(std::string_view list);

  bool contains(std::string_view module) const;
  std::string to_string() const;

 private:
  std::vector<std::string_view> names_;  // in the order of module_shapes, no duplicates
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
