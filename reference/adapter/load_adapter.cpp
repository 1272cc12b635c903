#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include "reference/adapter/adapter.hpp"
#include "reference/adapter/adapter_error.hpp"
#include "reference/adapter/expand_module.hpp"
#include "reference/numerics/rows.hpp"

namespace loratory::reference {
namespace {

using Code = AdapterErrorCode;

constexpr int kLoadThreads = 4;  // more than one is needed to fill the memory's bus

// The largest magnitude of the numbers in `bytes`, as bits: without their sign, bits of every
// format here are ordered as the magnitudes are, infinity and NaN above all.
template <typename Bits>
uint32_t largest_bits(std::span<const std::byte> bytes) {
  constexpr auto kMagnitude = static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1);
  Bits largest = 0;
  for (size_t at = 0; at + sizeof(Bits) <= bytes.size(); at += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + at, sizeof bits);
    largest = std::max(largest, static_cast<Bits>(bits & kMagnitude));
  }
  return largest;
}

double largest_magnitude(const StoredTensor& tensor, Dtype dtype) {
  switch (size_bytes(dtype)) {
    case 4:
      return decode(dtype, largest_bits<uint32_t>(tensor.bytes));
    case 2:
      return decode(dtype, largest_bits<uint16_t>(tensor.bytes));
    default:
      return decode(dtype, largest_bits<uint8_t>(tensor.bytes));
  }
}

// NaN, infinity, and what becomes infinity in the engine's type. fp8 stays fp8 [1.22].
void require_finite(const StoredTensor& tensor, double largest, Dtype engine_dtype) {
  const Dtype dtype = *weight_dtype(tensor.dtype);
  if (!std::isfinite(largest)) {
    throw AdapterError(Code::non_finite, tensor.name, "has a weight that is NaN or infinite");
  }
  if (!is_f8(dtype) && !std::isfinite(round_to(engine_dtype, largest))) {
    throw AdapterError(Code::non_finite, tensor.name,
                       fmt::format("has a weight of magnitude {}, which overflows in {}", largest,
                                   name(engine_dtype)));
  }
}

// The largest bits times the largest factor, wherever they stand.
void require_finite_product(double largest, const StoredTensor* scale) {
  if (scale == nullptr) return;
  const double largest_factor = largest_magnitude(*scale, Dtype::f32);
  require_finite(*scale, largest_factor, Dtype::f32);
  const double product = largest * largest_factor;
  if (std::isfinite(round_to(Dtype::f32, product))) return;
  throw AdapterError(Code::non_finite, scale->name,
                     fmt::format("scales weights up to {}, which overflows in f32", product));
}

// The same numbers, whatever type each is stored in.
bool holds_numbers_of(const StoredTensor& tensor, const ConstTensorView& base) {
  const auto dtype = weight_dtype(tensor.dtype);
  if (!dtype) return false;
  const int64_t columns = tensor.shape[1];
  const ConstTensorView copy{*dtype, tensor.bytes.data(), tensor.shape, {columns, 1}};
  auto copied = std::vector<float>(size_t(columns));
  auto expected = std::vector<float>(size_t(columns));
  for (int64_t row = 0; row < tensor.shape[0]; ++row) {
    read_row(copy, row, 0, std::span(copied));
    read_row(base, row, 0, std::span(expected));
    if (copied != expected) return false;
  }
  return true;
}

// Which switch of EnabledModules a module hangs on.
struct Group {
  std::string_view name;
  bool enabled;
};

Group group_of(const ModuleRef& ref, const EnabledModules& enabled) {
  const bool in_experts = ref.expert >= 0 || ref.packing == Packing::experts ||
                          ref.packing == Packing::inner_parameter ||
                          ref.packing == Packing::outer_parameter ||
                          ref.projection == Projection::router;
  if (in_experts) return {"experts", enabled.experts};
  if (ref.projection == Projection::embed_tokens) return {"embed_tokens", enabled.embed_tokens};
  if (ref.projection == Projection::lm_head) return {"lm_head", enabled.lm_head};
  if (ref.projection >= Projection::gate) return {"mlp", enabled.mlp};
  return {"attention", enabled.attention};
}

class Loader {
 public:
  Loader(AdapterConfig config, SafetensorsFile file, const BaseModelShapes& shapes,
         const LoadOptions& options)
      : config_(std::move(config)), file_(std::move(file)), shapes_(shapes), options_(options) {}

  Adapter load() {
    warnings_ = config_.warnings;
    warn_of_other_base();
    for (const StoredTensor& tensor : file_.tensors()) read_tensor(tensor);
    StepBudget budget = step_budget(checkpoint_modules_.size());
    for (const auto& [place, module] : checkpoint_modules_) {
      require_sound(module, budget);
      for (LoraModule& piece : expand_module(module, config_, shapes_, budget)) {
        add(std::move(piece), module);
      }
    }
    if (modules_.empty())
      throw AdapterError(Code::empty, "", "the adapter adapts no module of the model");
    return finish();
  }

 private:
  void warn_of_other_base() {
    const std::string& trained_on = config_.base_model_name;
    if (options_.base_model_name.empty() || trained_on.empty()) return;
    if (trained_on != options_.base_model_name) {
      warnings_.push_back(fmt::format("trained on '{}', loaded for '{}'", printable_key(trained_on),
                                      printable_key(options_.base_model_name)));
    }
  }

  // Unmatched keys end here in lenient mode.
  void read_tensor(const StoredTensor& tensor) {
    try {
      const AdapterKey key = parse_adapter_key(tensor.name);
      const ModuleRef ref = parse_module_path(key.path, tensor.name, shapes_);
      if (key.role == TensorRole::base_copy || key.role == TensorRole::whole_weight) {
        return note_base_copy(tensor, key.role, ref.projection);
      }
      require_role(tensor, key.role, ref);
      place(tensor, key, ref);
    } catch (const AdapterError& error) {
      if (options_.strict || error.code() != Code::key) throw;
      warnings_.emplace_back(error.what());
    }
  }

  // PEFT puts the copy in the place of the base weights, which changes nothing if it is exact.
  void note_base_copy(const StoredTensor& tensor, TensorRole role, Projection projection) {
    const auto refuse = [&](std::string_view feature, std::string_view rule,
                            std::string_view remedy) {
      throw AdapterError(Code::unsupported, feature, tensor.name, rule, remedy);
    };
    if (tensor.shape != Extents{shapes_.vocab, shapes_.hidden}) {
      refuse("resized_vocab",
             fmt::format("has shape {}, the base model [{}, {}]", shape_text(tensor.shape),
                         shapes_.vocab, shapes_.hidden),
             kMergeRemedy);
    }
    if (!options_.base_weights) {
      if (role == TensorRole::whole_weight) {
        refuse("modules_to_save", "a whole weight, and there is no base model to compare it with",
               "if it was not trained, save the adapter with save_embedding_layers=False");
      }
    } else if (!holds_numbers_of(tensor, options_.base_weights(projection))) {
      refuse("changed_base",
             "is not an exact copy of the base weights: they were trained, or belong to another "
             "model",
             kMergeRemedy);
    }
    warnings_.push_back(
        fmt::format("{}: a copy of the base weights, ignored", printable_key(tensor.name)));
  }

  // Embeddings have lora_embedding_A and _B, linear layers lora_A and lora_B.
  void require_role(const StoredTensor& tensor, TensorRole role, const ModuleRef& ref) const {
    const bool is_embedding = role == TensorRole::embedding_a || role == TensorRole::embedding_b;
    const bool may_be =
        ref.projection == Projection::embed_tokens ||
        (ref.projection == Projection::lm_head && (!is_embedding || shapes_.tied_embeddings));
    if (is_embedding && !may_be) {
      throw AdapterError(Code::key, tensor.name, "is of an embedding, the module is none");
    }
    if (!is_embedding && ref.projection == Projection::embed_tokens) {
      throw AdapterError(Code::key, tensor.name, "is of a linear layer, the module is none",
                         "PEFT calls it lora_embedding_A or lora_embedding_B");
    }
  }

  void place(const StoredTensor& tensor, const AdapterKey& key, const ModuleRef& ref) {
    const bool is_embedding =
        key.role == TensorRole::embedding_a || key.role == TensorRole::embedding_b;
    CheckpointModule& module = checkpoint_modules_[{key.path, is_embedding}];
    module.path = key.path;
    module.ref = ref;
    module.is_embedding = is_embedding;
    switch (key.role) {
      case TensorRole::a:
      case TensorRole::embedding_a:
        module.a = &tensor;
        break;
      case TensorRole::b:
      case TensorRole::embedding_b:
        module.b = &tensor;
        break;
      case TensorRole::a_scale:
        module.a_scale = &tensor;
        break;
      case TensorRole::b_scale:
        module.b_scale = &tensor;
        break;
      case TensorRole::base_copy:
      case TensorRole::whole_weight:
        break;
    }
  }

  // Everything about one module that does not depend on its shapes.
  void require_sound(const CheckpointModule& module, StepBudget& budget) const {
    require_pair(module);
    const auto [group, enabled] = group_of(module.ref, options_.enabled);
    if (!enabled) {
      throw AdapterError(Code::unsupported, group, module.key(),
                         "LoRA is not enabled for these modules", "");
    }
    require_target(module, budget);
    require_dtype(*module.a, module.a_scale);
    require_dtype(*module.b, module.b_scale);
  }

  static void require_pair(const CheckpointModule& module) {
    if (module.a != nullptr && module.b != nullptr) return;
    for (const StoredTensor* lonely : {module.a, module.b, module.a_scale, module.b_scale}) {
      if (lonely == nullptr) continue;
      throw AdapterError(Code::pair, lonely->name,
                         fmt::format("module {} has no {}", printable_key(module.path),
                                     module.a == nullptr ? "lora_A" : "lora_B"));
    }
  }

  // Parameters have their own list, which parameter_path looks at.
  void require_target(const CheckpointModule& module, StepBudget& budget) const {
    const Packing packing = module.ref.packing;
    if (packing == Packing::inner_parameter || packing == Packing::outer_parameter) return;
    if (targets_router_weight(module, config_)) return;
    if (!config_.targets(module.path, module.ref.layer >= 0, budget)) {
      throw AdapterError(Code::target, module.key(),
                         "target_modules of the configuration leave this module out");
    }
  }

  static void require_dtype(const StoredTensor& tensor, const StoredTensor* scale) {
    const auto dtype = weight_dtype(tensor.dtype);
    if (!dtype) {
      throw AdapterError(
          Code::dtype, tensor.name,
          fmt::format("{} is not a supported type of weights", dtype_name(tensor.dtype)),
          "F32, F16, BF16, F8_E4M3 and F8_E5M2 are");
    }
    if (is_f8(*dtype) && scale == nullptr) {
      throw AdapterError(Code::dtype, tensor.name, "is fp8 without a weight_scale tensor");
    }
    if (!is_f8(*dtype) && scale != nullptr) {
      throw AdapterError(Code::dtype, scale->name, "scales a tensor that is not fp8");
    }
    if (scale != nullptr && scale->dtype != StorageDtype::f32) {
      throw AdapterError(Code::dtype, scale->name, "scales must be F32");
    }
  }

  void add(LoraModule piece, const CheckpointModule& module) {
    if (piece.rank > options_.max_lora_rank) {
      throw AdapterError(Code::rank, module.key(),
                         fmt::format("rank {} is greater than max_lora_rank {}", piece.rank,
                                     options_.max_lora_rank));
    }
    const ModuleId id = piece.id;
    if (!modules_.emplace(id, std::move(piece)).second) {
      throw AdapterError(Code::key, module.key(),
                         fmt::format("{} is adapted a second time", to_string(id)));
    }
  }

  // Reading all weights takes long: by several threads. What is found is said in order.
  void check_weights() const {
    std::vector<const StoredTensor*> tensors;
    for (const auto& [place, module] : checkpoint_modules_) {
      tensors.push_back(module.a);
      tensors.push_back(module.b);
    }
    std::vector<double> largest(tensors.size());
#pragma omp parallel for schedule(dynamic) num_threads(kLoadThreads)
    for (size_t i = 0; i < tensors.size(); ++i) {
      largest[i] = largest_magnitude(*tensors[i], *weight_dtype(tensors[i]->dtype));
    }
    size_t next = 0;
    for (const auto& [place, module] : checkpoint_modules_) {
      const double of_a = largest[next++], of_b = largest[next++];
      require_finite(*module.a, of_a, options_.engine_dtype);
      require_finite(*module.b, of_b, options_.engine_dtype);
      require_finite_product(of_a, module.a_scale);
      require_finite_product(of_b, module.b_scale);
    }
  }

  Adapter finish() {
    file_.read_ahead();
    if (options_.check_finite) check_weights();
    Adapter adapter{std::move(config_), {}, 0, std::move(warnings_), std::move(file_)};
    for (auto& [id, module] : modules_) {
      adapter.rank = std::max(adapter.rank, module.rank);
      adapter.modules.push_back(std::move(module));
    }
    return adapter;
  }

  AdapterConfig config_;
  SafetensorsFile file_;
  const BaseModelShapes& shapes_;
  const LoadOptions& options_;
  std::vector<std::string> warnings_;
  std::map<std::pair<std::string, bool>, CheckpointModule> checkpoint_modules_;
  std::map<ModuleId, LoraModule> modules_;
};

// The weights' file, or a word on what lies there instead.
std::string weights_path(const std::filesystem::path& directory) {
  const auto path = directory / "adapter_model.safetensors";
  const auto pickle = directory / "adapter_model.bin";
  if (!std::filesystem::exists(path) && std::filesystem::exists(pickle)) {
    throw AdapterError(Code::unsupported, "pickle", pickle.string(),
                       "an unsafe format: loading it can run code",
                       "convert it to adapter_model.safetensors");
  }
  return path.string();
}

}  // namespace

std::string to_string(const ModuleId& id) {
  const std::string_view name = projection_name(id.projection);
  if (id.layer < 0) return std::string(name);
  if (id.expert >= 0) return fmt::format("layers.{}.mlp.experts.{}.{}", id.layer, id.expert, name);
  const bool is_attention = id.projection <= Projection::o;
  return fmt::format("layers.{}.{}.{}", id.layer, is_attention ? "self_attn" : "mlp", name);
}

const LoraModule* Adapter::find(const ModuleId& id) const {
  const auto it = std::ranges::lower_bound(modules, id, {}, &LoraModule::id);
  return it != modules.end() && it->id == id ? &*it : nullptr;
}

Adapter load_adapter(AdapterConfig config, SafetensorsFile file, const BaseModelShapes& shapes,
                     const LoadOptions& options) {
  return Loader(std::move(config), std::move(file), shapes, options).load();
}

Adapter load_adapter(const std::string& directory, const BaseModelShapes& shapes,
                     const LoadOptions& options) {
  const std::filesystem::path folder(directory);
  const MappedFile config((folder / "adapter_config.json").string());
  return load_adapter(parse_adapter_config(config.text(), {options.assume_residual_base}),
                      SafetensorsFile::open(weights_path(folder)), shapes, options);
}

}  // namespace loratory::reference
