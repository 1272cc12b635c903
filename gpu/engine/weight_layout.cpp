#include "gpu/engine/weight_layout.hpp"

#include <fmt/format.h>

#include <initializer_list>

#include "gpu/engine/arena.hpp"
#include "gpu/engine/engine_options.hpp"
#include "reference/base/check.hpp"

namespace loratory::gpu {

using reference::Dtype;
using reference::LayerWeights;
using reference::Model;
using reference::ModelConfig;

namespace {

// What a role is called behind "model.layers.3.".
std::string_view layer_name(WeightRole role) {
  switch (role) {
    case WeightRole::input_norm:
      return "input_layernorm.weight";
    case WeightRole::post_attention_norm:
      return "post_attention_layernorm.weight";
    case WeightRole::q:
      return "self_attn.q_proj.weight";
    case WeightRole::k:
      return "self_attn.k_proj.weight";
    case WeightRole::v:
      return "self_attn.v_proj.weight";
    case WeightRole::q_bias:
      return "self_attn.q_proj.bias";
    case WeightRole::k_bias:
      return "self_attn.k_proj.bias";
    case WeightRole::v_bias:
      return "self_attn.v_proj.bias";
    case WeightRole::q_norm:
      return "self_attn.q_norm.weight";
    case WeightRole::k_norm:
      return "self_attn.k_norm.weight";
    case WeightRole::o:
      return "self_attn.o_proj.weight";
    case WeightRole::o_bias:
      return "self_attn.o_proj.bias";
    case WeightRole::gate:
      return "mlp.gate_proj.weight";
    case WeightRole::up:
      return "mlp.up_proj.weight";
    case WeightRole::gate_bias:
      return "mlp.gate_proj.bias";
    case WeightRole::up_bias:
      return "mlp.up_proj.bias";
    case WeightRole::down:
      return "mlp.down_proj.weight";
    case WeightRole::down_bias:
      return "mlp.down_proj.bias";
    default:
      return "";
  }
}

// What a matrix of an expert is called behind "experts.5.".
std::string_view expert_matrix(WeightRole role, bool of_mixtral) {
  if (role == WeightRole::gate) return of_mixtral ? "w1" : "gate_proj";
  if (role == WeightRole::up) return of_mixtral ? "w3" : "up_proj";
  return of_mixtral ? "w2" : "down_proj";
}

std::string expert_block(const WeightPart& part, const ExpertNames& names) {
  return fmt::format("model.layers.{}.{}", part.layer,
                     names.of_mixtral ? "block_sparse_moe." : "mlp.");
}

}  // namespace

std::string checkpoint_name(const WeightPart& part, const ExpertNames& names) {
  if (part.role == WeightRole::router) return expert_block(part, names) + "gate.weight";
  if (part.expert >= 0) {
    return fmt::format("{}experts.{}.{}.weight", expert_block(part, names), part.expert,
                       expert_matrix(part.role, names.of_mixtral));
  }
  switch (part.role) {
    case WeightRole::embed_tokens:
      return "model.embed_tokens.weight";
    case WeightRole::norm:
      return "model.norm.weight";
    case WeightRole::lm_head:
      return "lm_head.weight";
    default:
      return fmt::format("model.layers.{}.{}", part.layer, layer_name(part.role));
  }
}

namespace {

// gate and up of all experts [E, 2I, H], or down [E, H, I]: what begins with this part of expert 0.
StoredPart fused_part(const WeightLayout& layout, const WeightPart& part,
                      const ExpertNames& names) {
  int64_t num_experts = 0;
  for (const WeightPart& other : layout.parts) {
    num_experts += other.layer == part.layer && other.expert >= 0 && other.role == part.role;
  }
  const bool is_gate = part.role == WeightRole::gate;
  return {expert_block(part, names) + (is_gate ? "experts.gate_up_proj" : "experts.down_proj"),
          {num_experts, (is_gate ? 2 : 1) * part.num_rows, part.num_columns},
          part.offset};
}

}  // namespace

std::vector<StoredPart> stored_parts(const WeightLayout& layout, const ExpertNames& names) {
  std::vector<StoredPart> out;
  for (const WeightPart& part : layout.parts) {
    if (names.fused && part.expert >= 0) {
      const bool begins = part.expert == 0 && part.role != WeightRole::up;
      if (begins) out.push_back(fused_part(layout, part, names));
      continue;
    }
    std::vector<int64_t> shape{part.num_rows};
    if (!part.is_vector()) shape.push_back(part.num_columns);
    out.push_back({checkpoint_name(part, names), shape, part.offset});
  }
  return out;
}

namespace {

WeightNumbers numbers_of_expert(const reference::MlpWeights& mlp, WeightRole role) {
  if (role == WeightRole::gate) return {.matrix = &mlp.gate.weight};
  if (role == WeightRole::up) return {.matrix = &mlp.up.weight};
  return {.matrix = &mlp.down.weight};
}

WeightNumbers numbers_of_layer(const LayerWeights& layer, WeightRole role) {
  switch (role) {
    case WeightRole::input_norm:
      return {.vector = &layer.input_norm};
    case WeightRole::post_attention_norm:
      return {.vector = &layer.post_attention_norm};
    case WeightRole::q:
      return {.matrix = &layer.q.weight};
    case WeightRole::k:
      return {.matrix = &layer.k.weight};
    case WeightRole::v:
      return {.matrix = &layer.v.weight};
    case WeightRole::q_bias:
      return {.vector = &layer.q.bias};
    case WeightRole::k_bias:
      return {.vector = &layer.k.bias};
    case WeightRole::v_bias:
      return {.vector = &layer.v.bias};
    case WeightRole::q_norm:
      return {.vector = &layer.q_norm};
    case WeightRole::k_norm:
      return {.vector = &layer.k_norm};
    case WeightRole::o:
      return {.matrix = &layer.o.weight};
    case WeightRole::o_bias:
      return {.vector = &layer.o.bias};
    case WeightRole::gate:
      return {.matrix = &layer.mlp.gate.weight};
    case WeightRole::up:
      return {.matrix = &layer.mlp.up.weight};
    case WeightRole::gate_bias:
      return {.vector = &layer.mlp.gate.bias};
    case WeightRole::up_bias:
      return {.vector = &layer.mlp.up.bias};
    case WeightRole::down:
      return {.matrix = &layer.mlp.down.weight};
    case WeightRole::down_bias:
      return {.vector = &layer.mlp.down.bias};
    case WeightRole::router:
      return {.matrix = &layer.router};
    default:
      return {};
  }
}

}  // namespace

WeightNumbers numbers_of(const Model& model, const WeightPart& part) {
  if (part.expert >= 0) {
    return numbers_of_expert(model.layers[size_t(part.layer)].experts[size_t(part.expert)],
                             part.role);
  }
  switch (part.role) {
    case WeightRole::embed_tokens:
      return {.matrix = &model.embed_tokens};
    case WeightRole::norm:
      return {.vector = &model.norm};
    case WeightRole::lm_head:
      return {.matrix = &model.lm_head};
    default:
      return numbers_of_layer(model.layers[size_t(part.layer)], part.role);
  }
}

namespace {

class Planner {
 public:
  Planner(const ModelConfig& config, Dtype dtype)
      : config_(config), size_(int64_t(size_bytes(dtype))) {}

  WeightLayout plan() {
    out_.embed_tokens = add(-1, {{WeightRole::embed_tokens, config_.vocab}}, config_.hidden);
    for (int64_t i = 0; i < config_.num_layers; ++i) add_layer(i);
    out_.norm = add(-1, {{WeightRole::norm, config_.hidden}}, 1);
    out_.lm_head = config_.tied_embeddings
                       ? out_.embed_tokens
                       : add(-1, {{WeightRole::lm_head, config_.vocab}}, config_.hidden);
    out_.bytes = arena_.bytes();
    return std::move(out_);
  }

 private:
  struct Rows {
    WeightRole role;
    int64_t num_rows;
  };

  // One tensor of the device: parts one below the other.
  int64_t add(int64_t layer, std::initializer_list<Rows> parts, int64_t num_columns) {
    int64_t num_rows = 0;
    for (const Rows& part : parts) num_rows += part.num_rows;
    const int64_t begin = arena_.add(num_rows * num_columns * size_);
    int64_t offset = begin;
    for (const Rows& part : parts) {
      out_.parts.push_back({.role = part.role,
                            .layer = layer,
                            .num_rows = part.num_rows,
                            .num_columns = num_columns,
                            .offset = offset});
      offset += part.num_rows * num_columns * size_;
    }
    return begin;
  }

  // A matrix [rows, columns] for each expert, one behind the other; gate and up are one.
  int64_t add_experts(int64_t layer, std::initializer_list<Rows> parts, int64_t num_columns) {
    int64_t num_rows = 0;
    for (const Rows& part : parts) num_rows += part.num_rows;
    const int64_t begin = arena_.add(config_.num_experts * num_rows * num_columns * size_);
    int64_t offset = begin;
    for (int64_t e = 0; e < config_.num_experts; ++e) {
      for (const Rows& part : parts) {
        out_.parts.push_back({.role = part.role,
                              .layer = layer,
                              .expert = e,
                              .num_rows = part.num_rows,
                              .num_columns = num_columns,
                              .offset = offset});
        offset += part.num_rows * num_columns * size_;
      }
    }
    return begin;
  }

  void add_mlp(int64_t i, LayerOffsets& at) {
    const int64_t hidden = config_.hidden, inner = config_.intermediate;
    using enum WeightRole;
    if (has_experts(config_, i)) {
      const int64_t size = config_.expert_intermediate;
      at.router = add(i, {{router, config_.num_experts}}, hidden);
      at.experts_gate_up = add_experts(i, {{gate, size}, {up, size}}, hidden);
      at.experts_down = add_experts(i, {{down, hidden}}, size);
      return;
    }
    at.gate_up = add(i, {{gate, inner}, {up, inner}}, hidden);
    if (config_.mlp_bias) at.gate_up_bias = add(i, {{gate_bias, inner}, {up_bias, inner}}, 1);
    at.down = add(i, {{down, hidden}}, inner);
    if (config_.mlp_bias) at.down_bias = add(i, {{down_bias, hidden}}, 1);
  }

  void add_layer(int64_t i) {
    const int64_t hidden = config_.hidden;
    const int64_t q_size = config_.num_heads * config_.head_dim;
    const int64_t kv_size = config_.num_kv_heads * config_.head_dim;
    using enum WeightRole;
    LayerOffsets at;
    at.input_norm = add(i, {{input_norm, hidden}}, 1);
    at.qkv = add(i, {{q, q_size}, {k, kv_size}, {v, kv_size}}, hidden);
    if (config_.qkv_bias) {
      at.qkv_bias = add(i, {{q_bias, q_size}, {k_bias, kv_size}, {v_bias, kv_size}}, 1);
    }
    if (config_.qk_norm) {
      at.q_norm = add(i, {{q_norm, config_.head_dim}}, 1);
      at.k_norm = add(i, {{k_norm, config_.head_dim}}, 1);
    }
    at.o = add(i, {{o, hidden}}, q_size);
    if (config_.o_bias) at.o_bias = add(i, {{o_bias, hidden}}, 1);
    at.post_attention_norm = add(i, {{post_attention_norm, hidden}}, 1);
    add_mlp(i, at);
    out_.layers.push_back(at);
  }

  const ModelConfig& config_;
  int64_t size_;
  Arena arena_;
  WeightLayout out_;
};

}  // namespace

WeightLayout lay_out_weights(const ModelConfig& config, Dtype dtype) {
  return Planner(config, dtype).plan();
}

}  // namespace loratory::gpu
