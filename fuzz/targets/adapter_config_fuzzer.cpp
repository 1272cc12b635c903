// parse_adapter_config: any bytes give a configuration that answers for any path and survives being
// written and read, or one AdapterError.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "reference/adapter/adapter_config.hpp"
#include "reference/adapter/adapter_error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace loratory::reference;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const AdapterConfig config = parse_adapter_config(text);
    const AdapterConfig again = parse_adapter_config(adapter_config_text(config));
    for (const char* path :
         {"model.layers.1.self_attn.q_proj", "lm_head", "aaaaaaaaaaaaaaaaaaaa"}) {
      const bool same = config.rank_of(path) == again.rank_of(path) &&
                        config.alpha_of(path) == again.alpha_of(path) &&
                        config.targets(path, true) == again.targets(path, true);
      if (!same || config.rank_of(path) < 1) std::abort();
    }
  } catch (const AdapterError&) {
  }
  return 0;
}
