#include <fmt/format.h>

#include "reference/base/input_error.hpp"
#include "reference/model/checkpoint.hpp"
#include "reference/model/model.hpp"

namespace loratory::reference {
namespace {

// What the three matrices of an MLP are called.
struct MlpNames {
  const char *gate, *up, *down;
};
constexpr MlpNames kMlpNames{"gate_proj", "up_proj", "down_proj"};
constexpr MlpNames kMixtralNames{"w1", "w3", "w2"};

class Loader {
 public:
  Loader(const ModelConfig& config, Checkpoint& checkpoint)
      : config_(config), checkpoint_(checkpoint) {}

  Model load() {
    Model model;
    model.config = config_;
    model.embed_tokens =
        checkpoint_.matrix("model.embed_tokens.weight", config_.vocab, config_.hidden);
    for (int64_t i = 0; i < config_.num_layers; ++i) model.layers.push_back(layer(i));
    model.norm = checkpoint_.vector("model.norm.weight", config_.hidden);
    load_lm_head(model);
    checkpoint_.refuse_unused();
    return model;
  }

 private:
  LinearWeights linear(const std::string& name, int64_t num_rows, int64_t num_columns,
                       bool has_bias) {
    LinearWeights out;
    out.weight = checkpoint_.matrix(name + ".weight", num_rows, num_columns);
    if (has_bias) out.bias = checkpoint_.vector(name + ".bias", num_rows);
    return out;
  }

  LayerWeights layer(int64_t index) {
    const std::string prefix = fmt::format("model.layers.{}.", index);
    const std::string attention = prefix + "self_attn.";
    const int64_t hidden = config_.hidden, q = config_.num_heads * config_.head_dim,
                  kv = config_.num_kv_heads * config_.head_dim;
    LayerWeights out;
    out.input_norm = checkpoint_.vector(prefix + "input_layernorm.weight", hidden);
    out.post_attention_norm =
        checkpoint_.vector(prefix + "post_attention_layernorm.weight", hidden);
    out.q = linear(attention + "q_proj", q, hidden, config_.qkv_bias);
    out.k = linear(attention + "k_proj", kv, hidden, config_.qkv_bias);
    out.v = linear(attention + "v_proj", kv, hidden, config_.qkv_bias);
    out.o = linear(attention + "o_proj", hidden, q, config_.o_bias);
    if (config_.qk_norm) {
      out.q_norm = checkpoint_.vector(attention + "q_norm.weight", config_.head_dim);
      out.k_norm = checkpoint_.vector(attention + "k_norm.weight", config_.head_dim);
    }
    if (config_.num_experts > 0 && config_.layer_has_experts[size_t(index)]) {
      load_experts(prefix, out);
      if (config_.shared_expert_intermediate > 0) load_shared_expert(prefix + "mlp.", out);
    } else {
      out.mlp = mlp(prefix + "mlp.", kMlpNames, config_.intermediate, config_.mlp_bias);
    }
    checkpoint_.ignore(attention + "rotary_emb.inv_freq");  // older checkpoints keep it
    return out;
  }

  MlpWeights mlp(const std::string& prefix, const MlpNames& names, int64_t size, bool has_bias) {
    return {linear(prefix + names.gate, size, config_.hidden, has_bias),
            linear(prefix + names.up, size, config_.hidden, has_bias),
            linear(prefix + names.down, config_.hidden, size, has_bias)};
  }

  // Under Mixtral's own names, or those of Qwen, which transformers 5 uses for all.
  void load_experts(const std::string& prefix, LayerWeights& out) {
    const bool is_mixtral = checkpoint_.has(prefix + "block_sparse_moe.gate.weight");
    const MlpNames& names = is_mixtral ? kMixtralNames : kMlpNames;
    const std::string block = prefix + (is_mixtral ? "block_sparse_moe." : "mlp.");
    out.router = checkpoint_.matrix(block + "gate.weight", config_.num_experts, config_.hidden);
    const std::string experts = block + "experts.";
    if (checkpoint_.has(experts + "gate_up_proj")) {
      load_fused_experts(experts, out);
      return;
    }
    for (int64_t e = 0; e < config_.num_experts; ++e) {
      out.experts.push_back(
          mlp(fmt::format("{}{}.", experts, e), names, config_.expert_intermediate, false));
    }
  }

  void load_shared_expert(const std::string& prefix, LayerWeights& out) {
    out.shared_expert =
        mlp(prefix + "shared_expert.", kMlpNames, config_.shared_expert_intermediate, false);
    out.shared_router = linear(prefix + "shared_expert_gate", 1, config_.hidden, false);
  }

  // gate_up_proj [E, 2I, H], gate above up; down_proj [E, H, I].
  void load_fused_experts(const std::string& prefix, LayerWeights& out) {
    const int64_t size = config_.expert_intermediate;
    auto gate_up =
        checkpoint_.planes(prefix + "gate_up_proj", config_.num_experts, 2 * size, config_.hidden);
    auto down = checkpoint_.planes(prefix + "down_proj", config_.num_experts, config_.hidden, size);
    for (size_t e = 0; e < down.size(); ++e) {
      MlpWeights& expert = out.experts.emplace_back();
      expert.gate.weight = gate_up[e].topRows(size);
      expert.up.weight = gate_up[e].bottomRows(size);
      expert.down.weight = std::move(down[e]);
    }
  }

  void load_lm_head(Model& model) {
    const std::string name = "lm_head.weight";
    if (config_.tied_embeddings && !checkpoint_.has(name)) return;
    Matrix<float> lm_head = checkpoint_.matrix(name, config_.vocab, config_.hidden);
    if (!config_.tied_embeddings) {
      model.lm_head = std::move(lm_head);
    } else if (lm_head != model.embed_tokens) {
      checkpoint_.fail(name, "differs from the embeddings that it is tied to");
    }
  }

  const ModelConfig& config_;
  Checkpoint& checkpoint_;
};

}  // namespace

Model load_model(const std::string& directory) {
  const ModelConfig config = read_model_config(fmt::format("{}/config.json", directory),
                                               "a model is a folder with a config.json");
  require_computed(config);
  Checkpoint checkpoint(directory);
  return Loader(config, checkpoint).load();
}

}  // namespace loratory::reference
