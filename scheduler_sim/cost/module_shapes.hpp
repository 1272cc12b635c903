#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "scheduler_sim/cost/model_spec.hpp"

namespace loratory::sim {

/// How tensor parallelism cuts a linear layer: its output (column), its input (row), or not at all;
/// of a vocabulary, embed_tokens keeps the low-rank matrices whole, and lm_head cuts its B.
enum class TpCut : uint8_t { column, row, replicated };

/// What a module is part of.
enum class ModulePart : uint8_t { attention, mlp, expert, shared_expert, vocabulary };

/// A linear module of the model: `count` of them, each [out, in].
struct ModuleShape {
  std::string_view name;  ///< PEFT's name without the path: "q_proj"
  int64_t in = 0;
  int64_t out = 0;
  int64_t count = 0;  ///< layers (x experts)
  TpCut cut = TpCut::column;
  int group = 0;  ///< modules of one group run as one packed layer (q|k|v, gate|up)
  ModulePart part = ModulePart::attention;
  int64_t plain_layers =
      0;  ///< layers in which a quantised checkpoint leaves it in the model's type

  /// `count` layers x experts, of which a token uses a few.
  bool is_expert() const { return part == ModulePart::expert; }
  bool is_vocabulary() const { return part == ModulePart::vocabulary; }
};

/// The modules of `model` that adapters may target, whole (tp = 1).
std::vector<ModuleShape> module_shapes(const ModelSpec& model);

/// The same as one of `tp` GPUs holds them. Column cut: out / tp. Row cut: in / tp. KV heads are
/// replicated when tp exceeds them.
std::vector<ModuleShape> cut_module_shapes(const ModelSpec& model, int tp);

/// In how many layers a shape stands.
int64_t num_layers_of(const ModelSpec& model, const ModuleShape& shape);

/// For ModelSpec::plain_layers: of each module shape, the layers that the checkpoint does not
/// quantise.
std::vector<int64_t> count_plain_layers(const ModelSpec& model);

/// Bytes of all `count` modules of a shape as the checkpoint stores them: quantised, but for layers
/// and modules that it leaves out.
int64_t module_bytes(const ModelSpec& model, const ModuleShape& shape);

/// The same of every module of a part on one of `tp` GPUs.
int64_t part_bytes(const ModelSpec& model, ModulePart part, int tp);

}  // namespace loratory::sim
