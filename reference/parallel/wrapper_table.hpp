#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reference/parallel/layer_shards.hpp"
#include "reference/parallel/local_buffers.hpp"

// Which form of LoRA a layer of a model gets, and whether it gets one at all. m is the number of
// names packed into the layer (q_proj, k_proj, v_proj: 3; 0 or 1: not packed), n the number of its
// outputs. The table is that of statement [3.21]; names of layers as vLLM has them.

namespace loratory::reference {

enum class BaseLayerType : uint8_t {
  vocab_embedding,
  column,
  merged_column,
  qkv,
  row,
  replicated,  ///< the router of experts included
  moe,
  other,
};

/// Sizes of a layer of experts on one tp_rank's share of them.
struct MoeSizes {
  int64_t num_experts = 0, hidden = 0, intermediate = 0;
  bool gated = true;             ///< gate and up; else up alone
  bool expert_parallel = false;  ///< experts are shared out over processes
};

struct BaseLayer {
  BaseLayerType type = BaseLayerType::other;
  bool exact_type = true;               ///< false: of a class derived from it
  int64_t num_in = 0;                   ///< K; the vocabulary of an embedding
  std::vector<int64_t> output_sizes{};  ///< n of them, unsharded
  QkvSizes qkv{};                       ///< of type qkv
  MoeSizes moe{};                       ///< of type moe
};

enum class WrapperKind : uint8_t {
  none,  ///< left as it is; an adapter for it is refused
  embedding,
  column,
  halves,    ///< one pair over one or two outputs [3.3]
  merged,    ///< a pair for each output [3.5]
  variable,  ///< as merged; also one pair over all outputs [3.6]
  fused_qkv,
  qkv,
  row,
  replicated,
  moe_2d,  ///< w1, w2, w3 apart
  moe_3d,  ///< w13 in one tensor, w2
  logits,  ///< lm_head, by name
};
std::string_view name(WrapperKind kind);

/// The answer of the table. `fully_sharded`: whether that form is used; embedding and replicated
/// have none, nor has merged with P = 1.
struct WrapperChoice {
  WrapperKind kind = WrapperKind::none;
  bool fully_sharded = false;

  friend bool operator==(const WrapperChoice&, const WrapperChoice&) = default;
};

/// First matching row of [3.21].
/// Errors   InputError: expert parallelism with fully_sharded [3.22]. A size that P does not
///          divide is found by make_wrapper().
WrapperChoice wrapper_kind(const BaseLayer& layer, int64_t num_packed, bool fully_sharded,
                           int64_t tp_size);

/// A layer with LoRA on every tp_rank.
struct Wrapper {
  WrapperChoice choice;
  std::vector<int64_t> num_out;       ///< N_i of the S slices, unsharded; of experts: those of w13
  std::vector<BufferShape> buffers;   ///< [S] on each tp_rank; experts: w13's, then w2's, an axis E
  std::optional<LayerShards> shards;  ///< linear kinds, embedding and logits

  size_t num_slices() const { return num_out.size(); }  ///< S
};

/// Errors   InputError as wrapper_kind() and as the functions of layer_shards.hpp.
Wrapper make_wrapper(const BaseLayer& layer, int64_t num_packed, const ParallelConfig& parallel,
                     int64_t max_loras);

/// The wrapper of lm_head, by vocabulary shard; num_in the hidden size, one output, padded to a
/// multiple of P. It does not go through the table [3.22].
Wrapper make_logits_wrapper(const BaseLayer& layer, const ParallelConfig& parallel,
                            int64_t max_loras);

/// The tensors of a checkpoint as one pair for each slice [3.24]. S = 1: one pair. merged, qkv and
/// variable: S entries of which some may be None, or fewer without None (expand_packed).
/// Experts: moe_2d [w1, w2, w3], moe_3d [w13, w2], as they are.
/// Errors   InputError naming the number of tensors, or as expand_packed().
LoraPairs accept_tensors(const Wrapper& wrapper, const LoraPairs& tensors);

/// One place in the tree of a model. Places with equal `identity` are one module.
struct ModulePlace {
  std::string path;  ///< "model.layers.0.self_attn.qkv_proj"
  uint64_t identity = 0;
  BaseLayer layer;
  int64_t num_packed = 0;
};

/// The wrappers of a model; one for a module, however many paths lead to it. lm_head has its own,
/// even if it is the embedding.
class WrappedModel {
 public:
  /// `targets` names modules by the last part of their path; empty: all of them.
  /// Errors   InputError: a target whose layer has no wrapper, or that no module has; and as
  ///          make_wrapper().
  WrappedModel(const std::vector<ModulePlace>& places, const ParallelConfig& parallel,
               int64_t max_loras, const std::vector<std::string>& targets = {});

  size_t num_wrappers() const;
  /// Errors   AdapterError E_UNSUPPORTED(layer): the module is not wrapped. `key` is what it names.
  const Wrapper& for_adapter(const std::string& path, std::string_view key) const;

 private:
  std::vector<Wrapper> wrappers_;
  std::map<std::string, size_t> index_of_path_;
};

}  // namespace loratory::reference
