// parse_model_config: any bytes give a plausible model or one InputError.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/cost/lora_shapes.hpp"
#include "scheduler_sim/cost/model_spec.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace loratory::sim;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const ModelSpec model = parse_model_config(text, "config.json");
    const bool plausible = model.num_parameters() > 0 && model.kv_bytes_per_token() > 0 &&
                           adapter_bytes(model, LoraTargets(), 512) > 0;
    if (!plausible) std::abort();
  } catch (const loratory::InputError&) {
  }
  return 0;
}
