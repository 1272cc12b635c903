#include "cli/serving_model.hpp"

#include <algorithm>

#include "reference/base/input_error.hpp"
#include "reference/base/units.hpp"
#include "reference/model/adapter_options.hpp"
#include "reference/model/model.hpp"
#include "scheduler_sim/serving/clocked_reference_executor.hpp"

namespace loratory::cli {
namespace {

class ReferenceServingModel final : public ServingModel {
 public:
  explicit ReferenceServingModel(const std::string& directory)
      : model_(reference::load_model(directory)) {}

  const reference::ModelConfig& config() const override { return model_.config; }
  reference::LoadOptions adapter_options() const override {
    return reference::adapter_options(model_);
  }

  // What the requests ask for, up to a GiB of float32.
  uint32_t num_kv_blocks(const sim::SchedulerConfig& scheduler, int64_t num_wanted,
                         int64_t num_needed) const override {
    const reference::ModelConfig& c = model_.config;
    const int64_t token_bytes =
        2 * c.num_layers * c.num_kv_heads * c.head_dim * int64_t{sizeof(float)};
    const int64_t num_in_gib = kGiB / (token_bytes * int64_t{scheduler.block_size});
    return uint32_t(1 + std::max(num_needed, std::min(num_wanted, num_in_gib)));
  }

  std::unique_ptr<sim::ModelExecutor> start(const sim::SchedulerConfig& scheduler,
                                            const sim::ModelRunnerConfig& runner,
                                            sim::Clock& clock) const override {
    return std::make_unique<sim::ClockedReferenceExecutor>(model_, scheduler, runner, clock);
  }

 private:
  const reference::Model model_;
};

}  // namespace

const std::vector<std::string>& executor_names() {
  static const std::vector<std::string> kNames = {"reference", "gpu"};
  return kNames;
}

std::unique_ptr<ServingModel> load_serving_model(const std::string& executor,
                                                 const std::string& directory) {
  if (executor == "gpu") {
    throw InputError("--executor", "this build has no GPU engine", "use --executor reference");
  }
  return std::make_unique<ReferenceServingModel>(directory);
}

}  // namespace loratory::cli
