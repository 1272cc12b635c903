#include "reference/parallel/wrapper_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reference/adapter/adapter_error.hpp"

namespace loratory::reference {
namespace {

using Kind = WrapperKind;

WrapperChoice merged_column_kind(const BaseLayer& layer, int64_t m, bool fully_sharded,
                                 int64_t tp_size) {
  const size_t n = layer.output_sizes.size();
  if (m == 1 && n <= 2) return {Kind::halves, fully_sharded};
  if (m == 2 && layer.exact_type) return {Kind::merged, fully_sharded && tp_size > 1};
  if (m == 2) return {tp_size == 1 ? Kind::merged : Kind::none, false};
  if (m >= 3 || n >= 3) return {Kind::variable, fully_sharded};
  return {};
}

WrapperChoice qkv_kind(int64_t m, bool fully_sharded) {
  if (m == 1) return {Kind::fused_qkv, fully_sharded};
  if (m == 3) return {Kind::qkv, fully_sharded};
  return {};
}

WrapperChoice moe_kind(const BaseLayer& layer, int64_t m, bool fully_sharded) {
  if (layer.moe.expert_parallel && fully_sharded) {
    throw InputError("fully_sharded", "is not possible with expert parallelism",
                     "turn one of the two off");
  }
  if (m == 2) return {Kind::moe_2d, fully_sharded};
  if (m == 1) return {Kind::moe_3d, fully_sharded};
  return {};
}

LayerShards make_shards(const BaseLayer& layer, Kind kind, const ParallelConfig& parallel) {
  switch (kind) {
    case Kind::column:
      return column_shards(parallel, layer.num_in, layer.output_sizes.at(0));
    case Kind::halves:
      return fused_column_shards(parallel, layer.num_in, layer.output_sizes);
    case Kind::merged:
    case Kind::variable:
      return merged_column_shards(parallel, layer.num_in, layer.output_sizes);
    case Kind::fused_qkv:
      return fused_qkv_shards(parallel, layer.num_in, layer.qkv);
    case Kind::qkv:
      return qkv_shards(parallel, layer.num_in, layer.qkv);
    case Kind::row:
      return row_shards(parallel, layer.num_in, layer.output_sizes.at(0));
    default:
      return replicated_shards(parallel, layer.num_in, layer.output_sizes.at(0));
  }
}

int64_t divided(std::string_view what, int64_t size, int64_t tp_size) {
  if (size % tp_size == 0) return size / tp_size;
  throw InputError(what, fmt::format("{} is not divisible by tp_size {}", size, tp_size));
}

// w13 of every slice, then w2 [1.33] [3.16] [3.17].
void set_expert_buffers(const MoeSizes& moe, const ParallelConfig& parallel, int64_t max_loras,
                        Wrapper& wrapper) {
  const bool fs = wrapper.choice.fully_sharded;
  const int64_t p = parallel.tp_size, rank = parallel.max_lora_rank, num_experts = moe.num_experts;
  const int64_t inner = divided("intermediate size", moe.intermediate, p);
  const int64_t w13_rank = fs ? divided("max_lora_rank", rank, p) : rank;
  const int64_t w2_rows = fs ? divided("hidden size", moe.hidden, p) : moe.hidden;
  const int64_t num_parts = moe.gated ? 2 : 1;
  const bool apart = wrapper.choice.kind == Kind::moe_2d;
  wrapper.num_out.assign(apart ? size_t(num_parts) : 1,
                         apart ? moe.intermediate : num_parts * moe.intermediate);
  for (const int64_t out : wrapper.num_out) {
    wrapper.buffers.push_back(
        {{max_loras, num_experts, w13_rank, moe.hidden}, {max_loras, num_experts, out / p, rank}});
  }
  wrapper.buffers.push_back(
      {{max_loras, num_experts, rank, inner}, {max_loras, num_experts, w2_rows, rank}});
}

Wrapper linear_wrapper(const WrapperChoice& choice, LayerShards shards, int64_t max_loras) {
  return {.choice = choice,
          .num_out = shards.num_out,
          .buffers = buffer_shapes(shards, 0, max_loras),
          .shards = std::move(shards)};
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('.') + 1); }

bool is_lm_head(const ModulePlace& place) { return last_part(place.path) == "lm_head"; }

}  // namespace

std::string_view name(WrapperKind kind) {
  constexpr std::string_view kNames[] = {"none",     "embedding", "column", "halves", "merged",
                                         "variable", "fused_qkv", "qkv",    "row",    "replicated",
                                         "moe_2d",   "moe_3d",    "logits"};
  return kNames[size_t(kind)];
}

WrapperChoice wrapper_kind(const BaseLayer& layer, int64_t num_packed, bool fully_sharded,
                           int64_t tp_size) {
  const auto if_exact = [&](WrapperChoice choice) {
    return layer.exact_type ? choice : WrapperChoice{};
  };
  switch (layer.type) {
    case BaseLayerType::vocab_embedding:
      return if_exact({Kind::embedding, false});
    case BaseLayerType::column:
      return if_exact({Kind::column, fully_sharded});
    case BaseLayerType::merged_column:
      return merged_column_kind(layer, num_packed, fully_sharded, tp_size);
    case BaseLayerType::qkv:
      return if_exact(qkv_kind(num_packed, fully_sharded));
    case BaseLayerType::row:
      return if_exact({Kind::row, fully_sharded});
    case BaseLayerType::replicated:
      return {Kind::replicated, false};
    case BaseLayerType::moe:
      return moe_kind(layer, num_packed, fully_sharded);
    case BaseLayerType::other:
      break;
  }
  return {};
}

Wrapper make_wrapper(const BaseLayer& layer, int64_t num_packed, const ParallelConfig& parallel,
                     int64_t max_loras) {
  const WrapperChoice choice =
      wrapper_kind(layer, num_packed, parallel.fully_sharded, parallel.tp_size);
  Wrapper wrapper{.choice = choice, .num_out = {}, .buffers = {}, .shards = std::nullopt};
  if (choice.kind == Kind::none) return wrapper;
  if (choice.kind == Kind::moe_2d || choice.kind == Kind::moe_3d) {
    set_expert_buffers(layer.moe, parallel, max_loras, wrapper);
    return wrapper;
  }
  ParallelConfig chosen = parallel;
  chosen.fully_sharded = choice.fully_sharded;
  return linear_wrapper(choice, make_shards(layer, choice.kind, chosen), max_loras);
}

Wrapper make_logits_wrapper(const BaseLayer& layer, const ParallelConfig& parallel,
                            int64_t max_loras) {
  const int64_t vocab = layer.output_sizes.at(0), p = parallel.tp_size;
  return linear_wrapper({Kind::logits, false},
                        vocab_shards(parallel, layer.num_in, vocab, (vocab + p - 1) / p * p),
                        max_loras);
}

LoraPairs accept_tensors(const Wrapper& wrapper, const LoraPairs& tensors) {
  const Kind kind = wrapper.choice.kind;
  const bool is_packed = kind == Kind::merged || kind == Kind::variable || kind == Kind::qkv;
  if (is_packed) return expand_packed(tensors, wrapper.num_out);
  const size_t expected = kind == Kind::moe_2d ? 3 : kind == Kind::moe_3d ? 2 : 1;
  const bool is_moe = expected > 1;
  const bool has_none = std::any_of(tensors.begin(), tensors.end(),
                                    [](const auto& pair) { return !pair.has_value(); });
  if (tensors.size() == expected && (is_moe || !has_none)) return tensors;
  throw InputError(name(kind), fmt::format("{} pairs{} where it takes {}", tensors.size(),
                                           (has_none ? ", some None" : ""), expected));
}

WrappedModel::WrappedModel(const std::vector<ModulePlace>& places, const ParallelConfig& parallel,
                           int64_t max_loras, const std::vector<std::string>& targets) {
  std::map<std::pair<uint64_t, bool>, size_t> index_of_module;
  std::map<std::string, bool> was_found;
  for (const std::string& target : targets) was_found[target] = false;
  for (const ModulePlace& place : places) {
    const auto target = was_found.find(last_part(place.path));
    if (!targets.empty() && target == was_found.end()) continue;
    if (!targets.empty()) target->second = true;
    const auto [module, is_new] =
        index_of_module.try_emplace({place.identity, is_lm_head(place)}, wrappers_.size());
    if (is_new) {
      wrappers_.push_back(is_lm_head(place)
                              ? make_logits_wrapper(place.layer, parallel, max_loras)
                              : make_wrapper(place.layer, place.num_packed, parallel, max_loras));
    }
    const bool is_wrapped = wrappers_[module->second].choice.kind != Kind::none;
    if (is_wrapped) index_of_path_[place.path] = module->second;
    if (is_wrapped || targets.empty()) continue;
    throw InputError(place.path, "this kind of layer cannot have LoRA",
                     "take it off the target modules");
  }
  for (const auto& [target, found] : was_found) {
    if (!found) throw InputError(target, "no module of the model has this name");
  }
}

size_t WrappedModel::num_wrappers() const {
  return size_t(std::count_if(wrappers_.begin(), wrappers_.end(), [](const Wrapper& wrapper) {
    return wrapper.choice.kind != Kind::none;
  }));
}

const Wrapper& WrappedModel::for_adapter(const std::string& path, std::string_view key) const {
  const auto found = index_of_path_.find(path);
  if (found != index_of_path_.end()) return wrappers_[found->second];
  throw AdapterError(AdapterErrorCode::unsupported, "layer", key,
                     "the layer " + path + " has no LoRA", "");
}

}  // namespace loratory::reference
