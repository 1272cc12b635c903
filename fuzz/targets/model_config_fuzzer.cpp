// parse_model_config: any bytes give one InputError that names the file, or a model with plausible
// sizes; and one that can be computed with, or a line that says why not.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "reference/base/input_error.hpp"
#include "reference/model/model_config.hpp"
#include "reference/model/rope.hpp"
#include "scheduler_sim/cost/lora_shapes.hpp"
#include "scheduler_sim/cost/model_spec.hpp"

namespace {

using loratory::reference::ModelConfig;

void require(bool condition) {
  if (!condition) std::abort();
}

bool names_the_file(std::string_view line) { return line.starts_with("config.json: "); }

void check_sizes(const ModelConfig& c) {
  const bool has_experts = c.num_experts > 0;
  require(c.hidden > 0 && c.intermediate > 0 && c.num_layers > 0 && c.vocab > 0 && c.head_dim > 0);
  require(c.num_heads % c.num_kv_heads == 0 && c.experts_per_token <= c.num_experts);
  require(has_experts == !c.layer_has_experts.empty());
  require(!has_experts || c.expert_intermediate > 0);
  require(base_model_shapes(c).q_size > 0);
}

void check_spec(const ModelConfig& config) {
  using namespace loratory::sim;
  const ModelSpec model = model_spec_of(config, "config.json");
  require(model.num_parameters() > 0 && model.kv_bytes_per_token() > 0);
  require(adapter_bytes(model, LoraTargets(), 512) > 0);
}

void check_arithmetic(const ModelConfig& config) {
  if (!config.not_computed.empty()) return require(names_the_file(config.not_computed));
  require(config.head_dim % 2 == 0);
  if (config.head_dim > 4096) return;
  for (const double f :
       loratory::reference::rope_frequencies<double>(config.rope, config.head_dim)) {
    require(f >= 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const ModelConfig config = loratory::reference::parse_model_config(text, "config.json");
    check_sizes(config);
    check_arithmetic(config);
    check_spec(config);
  } catch (const loratory::InputError& error) {
    require(names_the_file(error.what()));
  }
  return 0;
}
