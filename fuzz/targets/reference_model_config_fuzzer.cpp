// parse_model_config of the reference: any bytes give a model that can be computed with, or one
// InputError that names the file.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "reference/base/input_error.hpp"
#include "reference/model/model_config.hpp"
#include "reference/model/rope.hpp"

namespace {

bool is_computable(const loratory::reference::ModelConfig& c) {
  const bool has_experts = c.num_experts > 0;
  return c.hidden > 0 && c.intermediate > 0 && c.num_layers > 0 && c.vocab > 0 &&
         c.num_heads % c.num_kv_heads == 0 && c.head_dim > 0 && c.head_dim % 2 == 0 &&
         c.experts_per_token <= c.num_experts && has_experts == !c.layer_has_experts.empty() &&
         (!has_experts || c.expert_intermediate > 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace loratory::reference;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const ModelConfig config = parse_model_config(text, "config.json");
    if (!is_computable(config)) std::abort();
    if (base_model_shapes(config).q_size <= 0) std::abort();
    if (config.head_dim > 4096) return 0;
    const auto frequencies = rope_frequencies<double>(config.rope, config.head_dim);
    for (const double f : frequencies) {
      if (!(f >= 0)) std::abort();
    }
  } catch (const loratory::InputError& error) {
    if (!std::string_view(error.what()).starts_with("config.json: ")) std::abort();
  }
  return 0;
}
