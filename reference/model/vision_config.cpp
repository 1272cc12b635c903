// Parameters of the vision towers that stand beside a language model in one file.
#include "reference/base/json_fields.hpp"
#include "reference/model/model_config_parts.hpp"

namespace loratory::reference {
namespace {

constexpr int64_t kLargestTower = 1 << 16;  // of a size; products of four of them fit 64 bits

struct Tower {
  int64_t hidden, intermediate, num_layers, patch, image;
};

Tower read_tower(const JsonFields& fields, const Tower& fallback) {
  const auto size = [&](const char* key, int64_t value) {
    return fields.size_or(key, value, kLargestTower);
  };
  return {.hidden = size("hidden_size", fallback.hidden),
          .intermediate = size("intermediate_size", fallback.intermediate),
          .num_layers = size("num_hidden_layers", fallback.num_layers),
          .patch = size("patch_size", fallback.patch),
          .image = size("image_size", fallback.image)};
}

// Attention, an MLP of two matrices and two layer norms, all with biases.
int64_t encoder_parameters(const Tower& t) {
  const int64_t attention = 4 * (t.hidden * t.hidden + t.hidden);
  const int64_t mlp = 2 * t.hidden * t.intermediate + t.hidden + t.intermediate;
  return t.num_layers * (attention + mlp + 4 * t.hidden);
}

int64_t num_patches(const Tower& t) { return (t.image / t.patch) * (t.image / t.patch); }

// SigLIP with Gemma 3's projector, which has a norm.
int64_t gemma3_vision(const JsonFields& vision, int64_t hidden) {
  const Tower t = read_tower(vision, {1152, 4304, 27, 14, 896});
  const int64_t embedding = (3 * t.patch * t.patch + 1 + num_patches(t)) * t.hidden;
  return embedding + encoder_parameters(t) + 2 * t.hidden + t.hidden * hidden + t.hidden;
}

// Llama 4's tower: no bias at the patches, a class token, two norms; then a pixel shuffle of 2 x 2,
// an MLP and the projector.
int64_t llama4_vision(const JsonFields& vision, int64_t hidden) {
  const Tower t = read_tower(vision, {1408, 5632, 34, 14, 336});
  const int64_t output = vision.size_or("vision_output_dim", 4096, kLargestTower);
  const int64_t middle = vision.size_or("projector_input_dim", 4096, kLargestTower);
  const int64_t embedding = (3 * t.patch * t.patch + 1 + num_patches(t) + 1) * t.hidden;
  const int64_t adapter = 4 * t.hidden * middle + middle * output;
  return embedding + encoder_parameters(t) + 4 * t.hidden + adapter + output * hidden;
}

}  // namespace

void read_vision(const JsonFields& root, const ModelFamily& family, ModelConfig& config) {
  const nlohmann::json* const object = root.find("vision_config");
  if (object == nullptr) return;
  if (!object->is_object()) root.fail("vision_config", "must be an object");
  const JsonFields vision(*object, root.file(), "vision_config.");
  if (family.type.starts_with("gemma3")) {
    config.vision_parameters = gemma3_vision(vision, config.hidden);
  } else if (family.has(kLlama4)) {
    config.vision_parameters = llama4_vision(vision, config.hidden);
  }
  config.ignored.emplace_back(config.vision_parameters > 0
                                  ? "vision_config: images take no tokens and no time"
                                  : "vision_config: its weights and its tokens are not counted");
}

}  // namespace loratory::reference
