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
      StepBudget budget = step_budget(1);
      StepBudget budget_again = budget;
      const RankAndAlpha module = config.rank_and_alpha_of(path, budget);
      const RankAndAlpha module_again = again.rank_and_alpha_of(path, budget_again);
      const bool same =
          module.rank == module_again.rank && module.alpha == module_again.alpha &&
          config.targets(path, true, budget) == again.targets(path, true, budget_again) &&
          budget.steps_left == budget_again.steps_left;
      if (!same || module.rank < 1) std::abort();
    }
  } catch (const AdapterError&) {
  }
  return 0;
}
