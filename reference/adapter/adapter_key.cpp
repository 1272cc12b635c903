#include "reference/adapter/adapter_key.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <vector>

#include "reference/adapter/adapter_error.hpp"
#include "reference/base/text.hpp"

namespace loratory::reference {
namespace {

using Code = AdapterErrorCode;

constexpr std::string_view kPrefix = "base_model.model.";

struct Suffix {
  std::string_view text;
  TensorRole role;
};

constexpr std::array<Suffix, 6> kSuffixes{{
    {".lora_A.weight", TensorRole::a},
    {".lora_B.weight", TensorRole::b},
    {".lora_embedding_A", TensorRole::embedding_a},
    {".lora_embedding_B", TensorRole::embedding_b},
    {".lora_A.weight_scale", TensorRole::a_scale},
    {".lora_B.weight_scale", TensorRole::b_scale},
}};

[[noreturn]] void unknown_key(std::string_view key, std::string_view rule,
                              std::string_view remedy = {}) {
  throw AdapterError(Code::key, key, rule, remedy);
}

[[noreturn]] void unsupported(std::string_view feature, std::string_view key, std::string_view rule,
                              std::string_view remedy) {
  throw AdapterError(Code::unsupported, feature, key, rule, remedy);
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Tensors of features that would change the result if they were dropped.
void reject_features(std::string_view key) {
  if (contains(key, ".lora_magnitude_vector")) unsupported("dora", key, "DoRA", kMergeRemedy);
  if (contains(key, ".modules_to_save.")) {
    unsupported("modules_to_save", key, "a whole module saved with the adapter", kMergeRemedy);
  }
  if (contains(key, ".lora_bias") || key.ends_with(".bias")) {
    unsupported("bias", key, "a bias that came with the adapter", kMergeRemedy);
  }
}

// "q_proj.lora_A.default.weight": PEFT takes it under the name "default", drops it under others.
void reject_adapter_name(std::string_view key) {
  for (const auto& [suffix, role] : kSuffixes) {
    const std::string_view part = suffix.substr(0, suffix.find('.', 1));
    const size_t at = key.find(fmt::format("{}.", part));
    if (at == std::string_view::npos) continue;
    unknown_key(key, fmt::format("has the name of an adapter after {}", part.substr(1)),
                fmt::format("call it '{}{}', as PEFT's save_pretrained does",
                            printable_key(key.substr(0, at)), suffix));
  }
}

// What is left when no suffix fits.
[[noreturn]] void reject_rest(std::string_view key) {
  reject_adapter_name(key);
  if (key.ends_with(".weight")) {
    unsupported("modules_to_save", key, "a whole module saved with the adapter", kMergeRemedy);
  }
  unknown_key(key, "is not a tensor of a LoRA adapter");
}

// `path` is "embed_tokens" or "lm_head", after any prefix.
bool is_embedding(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('.') + 1);
  return name == "embed_tokens" || name == "lm_head";
}

// The part before `suffix`; empty if there is none.
std::string_view before_suffix(std::string_view text, std::string_view suffix) {
  return text.ends_with(suffix) ? text.substr(0, text.size() - suffix.size()) : "";
}

// "7", without sign, blanks or leading zeros.
std::optional<int64_t> index_of(std::string_view text) {
  const auto value = to_number<int64_t>(text);
  const bool canonical = value && *value >= 0 && (text.size() == 1 || text[0] != '0');
  return canonical ? value : std::nullopt;
}

struct Named {
  std::string_view name;
  Projection projection;
  Packing packing = Packing::single;
};

constexpr std::array<Named, 5> kAttention{{{"q_proj", Projection::q},
                                           {"k_proj", Projection::k},
                                           {"v_proj", Projection::v},
                                           {"o_proj", Projection::o},
                                           {"qkv_proj", Projection::q, Packing::qkv}}};
constexpr std::array<Named, 4> kMlp{{{"gate_proj", Projection::gate},
                                     {"up_proj", Projection::up},
                                     {"down_proj", Projection::down},
                                     {"gate_up_proj", Projection::gate, Packing::gate_up}}};
constexpr std::array<Named, 6> kExpert{{{"gate_proj", Projection::gate},
                                        {"up_proj", Projection::up},
                                        {"down_proj", Projection::down},
                                        {"w1", Projection::gate},
                                        {"w3", Projection::up},
                                        {"w2", Projection::down}}};

constexpr std::array<Named, 3> kSharedExpert{{{"gate_proj", Projection::shared_gate},
                                              {"up_proj", Projection::shared_up},
                                              {"down_proj", Projection::shared_down}}};
constexpr Named kSharedRouter{"shared_expert_gate", Projection::shared_router};

template <size_t kSize>
const Named* find_name(const std::array<Named, kSize>& names, std::string_view name) {
  const auto it = std::ranges::find(names, name, &Named::name);
  return it == names.end() ? nullptr : &*it;
}

// Parses what follows "layers.N." of one path.
class LayerParser {
 public:
  LayerParser(std::vector<std::string_view> parts, int64_t layer, std::string_view key,
              const BaseModelShapes& shapes)
      : parts_(std::move(parts)), layer_(layer), key_(key), shapes_(shapes) {}

  ModuleRef parse() const {
    const bool is_moe_block = at(0) == "mlp" || at(0) == "block_sparse_moe";
    if (parts_.size() == 2 && at(0) == "self_attn") return named(find_name(kAttention, at(1)));
    if (is_moe_block && at(1) == "experts") return expert();
    if (parts_.size() == 2 && is_moe_block && (at(1) == "gate" || at(1) == "router")) {
      return router();
    }
    if (parts_.size() == 3 && at(0) == "mlp" && at(1) == "shared_expert") {
      return shared(find_name(kSharedExpert, at(2)));
    }
    if (parts_.size() == 2 && at(0) == "mlp" && at(1) == kSharedRouter.name) {
      return shared(&kSharedRouter);
    }
    if (parts_.size() == 2 && at(0) == "mlp") {
      require_dense_mlp();
      return named(find_name(kMlp, at(1)));
    }
    unknown_key(key_, "does not name a module of a decoder layer");
  }

 private:
  std::string_view at(size_t i) const { return i < parts_.size() ? parts_[i] : ""; }

  ModuleRef named(const Named* name) const {
    if (name == nullptr) unknown_key(key_, "does not name a module of a decoder layer");
    return {layer_, name->projection, -1, name->packing};
  }

  // What only some layers have is refused in the others: it would load and then do nothing.
  void require_experts() const {
    if (shapes_.num_experts == 0) unknown_key(key_, "the model has no experts");
    if (!shapes_.layer_has_experts.empty() && !shapes_.layer_has_experts[size_t(layer_)]) {
      unknown_key(key_, fmt::format("layer {} has a dense MLP and no experts", layer_));
    }
  }

  void require_dense_mlp() const {
    if (shapes_.intermediate == 0) unknown_key(key_, "the model has no dense MLP");
    if (!shapes_.layer_has_experts.empty() && shapes_.layer_has_experts[size_t(layer_)]) {
      unknown_key(key_, fmt::format("layer {} has experts and no dense MLP", layer_));
    }
  }

  ModuleRef shared(const Named* name) const {
    if (shapes_.shared_expert_intermediate == 0) {
      unknown_key(key_, "the model has no shared expert");
    }
    require_experts();
    return named(name);
  }

  ModuleRef router() const {
    require_experts();
    if (!shapes_.router_has_lora) {
      unsupported("router", key_, "LoRA on the router of a MoE layer",
                  "train with its name in exclude_modules, or merge the adapter into its base");
    }
    return {layer_, Projection::router, -1, Packing::single};
  }

  ModuleRef expert() const {
    require_experts();
    if (parts_.size() == 2) return {layer_, Projection::down, -1, Packing::outer_parameter};
    if (parts_.size() == 3 && at(2) == "base_layer") {
      return {layer_, Projection::gate, -1, Packing::inner_parameter};
    }
    if (parts_.size() == 3 && at(2).starts_with('w')) {
      ModuleRef all = named(find_name(kExpert, at(2)));
      all.packing = Packing::experts;
      return all;
    }
    const auto index = index_of(at(2));
    if (parts_.size() != 4 || !index) unknown_key(key_, "does not name an expert");
    if (*index >= shapes_.num_experts) {
      unknown_key(key_, fmt::format("the model has {} experts", shapes_.num_experts));
    }
    ModuleRef one = named(find_name(kExpert, at(3)));
    one.expert = *index;
    return one;
  }

  std::vector<std::string_view> parts_;
  int64_t layer_;
  std::string_view key_;
  const BaseModelShapes& shapes_;
};

ModuleRef parse_decoder_path(std::string_view path, std::string_view key,
                             const BaseModelShapes& shapes) {
  auto parts = split(path, '.');
  const auto layer = parts.size() > 2 && parts[0] == "layers" ? index_of(parts[1]) : std::nullopt;
  if (!layer) unknown_key(key, "does not name a module of the model");
  if (*layer >= shapes.num_layers) {
    unknown_key(key, fmt::format("the model has {} layers", shapes.num_layers));
  }
  parts.erase(parts.begin(), parts.begin() + 2);
  return LayerParser(std::move(parts), *layer, key, shapes).parse();
}

}  // namespace

std::string_view projection_name(Projection projection) {
  constexpr std::array<std::string_view, 14> kNames{"q_proj",
                                                    "k_proj",
                                                    "v_proj",
                                                    "o_proj",
                                                    "gate_proj",
                                                    "up_proj",
                                                    "down_proj",
                                                    "router",
                                                    "shared_expert.gate_proj",
                                                    "shared_expert.up_proj",
                                                    "shared_expert.down_proj",
                                                    "shared_expert_gate",
                                                    "embed_tokens",
                                                    "lm_head"};
  return kNames[size_t(projection)];
}

AdapterKey parse_adapter_key(std::string_view key) {
  if (!key.starts_with(kPrefix)) {
    unknown_key(key, "does not begin with 'base_model.model.'",
                "save the adapter with PEFT's save_pretrained, not the model's state");
  }
  const std::string_view rest = key.substr(kPrefix.size());
  reject_features(key);
  for (const auto& [text, role] : kSuffixes) {
    if (rest.size() > text.size() && rest.ends_with(text)) {
      return {std::string(rest.substr(0, rest.size() - text.size())), role};
    }
  }
  const std::string_view copied = before_suffix(rest, ".base_layer.weight");
  if (is_embedding(copied)) return {std::string(copied), TensorRole::base_copy};
  const std::string_view whole = before_suffix(rest, ".weight");
  if (is_embedding(whole)) return {std::string(whole), TensorRole::whole_weight};
  reject_rest(key);
}

ModuleRef parse_module_path(std::string_view path, std::string_view key,
                            const BaseModelShapes& shapes) {
  for (const std::string& prefix : shapes.lm_head_prefixes) {
    if (path == prefix + "lm_head") return {-1, Projection::lm_head, -1, Packing::single};
  }
  for (const std::string& prefix : shapes.decoder_prefixes) {
    if (path == prefix + "embed_tokens") return {-1, Projection::embed_tokens, -1, Packing::single};
    if (path.starts_with(prefix + "layers.")) {
      return parse_decoder_path(path.substr(prefix.size()), key, shapes);
    }
  }
  unknown_key(key, "has a prefix that this model does not have",
              fmt::format("its layers are called '{}layers.N'",
                          shapes.decoder_prefixes.empty() ? "" : shapes.decoder_prefixes[0]));
}

}  // namespace loratory::reference
