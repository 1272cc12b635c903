#include "cli/serving_model.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "cli/flags.hpp"
#include "gpu/engine/gpu_model.hpp"
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
  uint32_t num_kv_blocks(const sim::SchedulerConfig& scheduler, const sim::ModelRunnerConfig&,
                         int64_t num_wanted, int64_t num_needed) const override {
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

class GpuServingModel final : public ServingModel {
 public:
  GpuServingModel(std::unique_ptr<gpu::GpuModel> model, reference::LoadOptions adapter_options)
      : model_(std::move(model)), adapter_options_(std::move(adapter_options)) {
    adapter_options_.engine_dtype = model_->dtype();  // weights that overflow there are refused
  }

  const reference::ModelConfig& config() const override { return model_->config(); }
  reference::LoadOptions adapter_options() const override { return adapter_options_; }

  uint32_t num_kv_blocks(const sim::SchedulerConfig& scheduler,
                         const sim::ModelRunnerConfig& runner, int64_t num_wanted,
                         int64_t num_needed) const override {
    sim::SchedulerConfig as_many_as_fit = scheduler;
    as_many_as_fit.num_blocks = 0;
    const gpu::EngineMemory memory = model_->plan_memory(as_many_as_fit, options(runner));
    if (!memory.problem.empty()) throw InputError("--executor gpu", memory.problem);
    return uint32_t(std::max(1 + num_needed, std::min(1 + num_wanted, memory.num_blocks)));
  }

  std::unique_ptr<sim::ModelExecutor> start(const sim::SchedulerConfig& scheduler,
                                            const sim::ModelRunnerConfig& runner,
                                            sim::Clock& clock) const override {
    gpu::EngineOptions made = options(runner);
    made.num_host_images =
        scheduler.residency.max_loras + int64_t{scheduler.residency.num_load_workers};
    return model_->start(scheduler, made, clock);
  }

 private:
  gpu::EngineOptions options(const sim::ModelRunnerConfig& runner) const {
    gpu::EngineOptions out;
    out.dtype = model_->dtype();
    out.max_lora_rank = runner.max_lora_rank;
    out.lora_dtype = runner.lora_dtype;
    return out;
  }

  const std::unique_ptr<gpu::GpuModel> model_;
  reference::LoadOptions adapter_options_;
};

std::optional<reference::Dtype> dtype_named(const std::string& name) {
  if (name == "bfloat16") return reference::Dtype::bf16;
  if (name == "float16") return reference::Dtype::f16;
  if (name == "float32") return reference::Dtype::f32;
  return std::nullopt;
}

}  // namespace

const std::vector<std::string>& executor_names() {
  static const std::vector<std::string> kNames = {"reference", "gpu"};
  return kNames;
}

int64_t most_positions(const reference::ModelConfig& model) {
  const int64_t most = model.max_position_embeddings;
  return model.sliding_window > 0 ? std::min(most, model.sliding_window) : most;
}

const std::vector<std::string>& dtype_names() {
  static const std::vector<std::string> kNames = {"auto", "bfloat16", "float16", "float32"};
  return kNames;
}

void add_async_scheduling(CLI::App& command, std::string& choice) {
  static const std::vector<std::string> kChoices = {"auto", "on", "off"};
  add_choice(command, "--async-scheduling", choice, kChoices,
             "Plan the next step while one runs; auto = on a GPU");
}

sim::StepsAhead steps_ahead(const std::string& choice, const std::string& executor) {
  const bool is_ahead = choice == "on" || (choice == "auto" && executor == "gpu");
  return is_ahead ? sim::StepsAhead::one : sim::StepsAhead::none;
}

std::unique_ptr<ServingModel> load_serving_model(const std::string& executor,
                                                 const std::string& directory,
                                                 const std::string& dtype) {
  if (executor == "gpu") {
    auto model = gpu::load_gpu_model(directory, dtype_named(dtype));
    auto options = reference::adapter_options(directory, model->config());
    return std::make_unique<GpuServingModel>(std::move(model), std::move(options));
  }
  if (dtype != "auto" && dtype != "float32") {
    throw InputError("--dtype", "the reference computes in float32, whatever the weights are",
                     "give float32 or leave it out");
  }
  return std::make_unique<ReferenceServingModel>(directory);
}

std::unique_ptr<ServingModel> random_serving_model(const std::string& executor,
                                                   const reference::ModelConfig& config,
                                                   const std::string& dtype) {
  if (executor == "gpu") {
    return std::make_unique<GpuServingModel>(gpu::random_gpu_model(config, dtype_named(dtype)),
                                             reference::LoadOptions{});
  }
  throw InputError("--weights", "random weights are made on a GPU",
                   "give the folder of a model to the reference");
}

}  // namespace loratory::cli
