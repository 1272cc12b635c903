#include "gpu/engine/gpu_model.hpp"

#include <cuda_runtime_api.h>

#include "gpu/engine/device/gpu_executor.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "gpu/runtime/device_ability.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::gpu {
namespace {

constexpr double kUtilization = 0.9;  // of what is free, as vLLM's gpu_memory_utilization

void require_gpu() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    cudaGetLastError();
    throw InputError("--executor", "this machine has no GPU", "use --executor reference");
  }
  if (!has_wgmma()) {
    throw InputError("--executor", "the GPU is not of sm_90 (H100, H200)",
                     "use --executor reference");
  }
}

reference::Dtype dtype_in(const std::string& directory) {
  return reference::read_model_config(directory + "/config.json",
                                      "a model is a folder with a config.json")
      .dtype;
}

class LoadedModel final : public GpuModel {
 public:
  explicit LoadedModel(DeviceModel model)
      : model_(std::move(model)),
        products_(ProductOptions{.launches = LaunchOrder::overlaps_previous}) {}

  const reference::ModelConfig& config() const override { return model_.config(); }
  reference::Dtype dtype() const override { return model_.dtype(); }

  EngineMemory plan_memory(const sim::SchedulerConfig& config,
                           const EngineOptions& options) const override {
    size_t free_bytes = 0, all_bytes = 0;
    LORATORY_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &all_bytes));
    return plan_engine_memory(model_.config(), config, options,
                              int64_t(products_.workspace_bytes()),
                              int64_t(free_bytes) + model_.bytes(), kUtilization);
  }

  std::unique_ptr<sim::ModelExecutor> start(const sim::SchedulerConfig& config,
                                            const EngineOptions& options,
                                            sim::Clock& clock) override {
    const EngineMemory memory = plan_memory(config, options);
    if (!memory.problem.empty()) throw InputError("the engine", memory.problem);
    return std::make_unique<GpuExecutor>(model_, products_,
                                         bounded_by_model(config, model_.config()), options, clock);
  }

 private:
  DeviceModel model_;
  Products products_;
};

}  // namespace

std::unique_ptr<GpuModel> load_gpu_model(const std::string& directory,
                                         std::optional<reference::Dtype> dtype) {
  require_gpu();
  return std::make_unique<LoadedModel>(
      DeviceModel::load(directory, dtype ? *dtype : dtype_in(directory)));
}

std::unique_ptr<GpuModel> random_gpu_model(const reference::ModelConfig& config,
                                           std::optional<reference::Dtype> dtype) {
  require_gpu();
  return std::make_unique<LoadedModel>(
      DeviceModel::random(config, dtype ? *dtype : config.dtype, /*seed=*/1));
}

}  // namespace loratory::gpu
