#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "gpu/engine/engine_memory.hpp"
#include "gpu/engine/engine_options.hpp"
#include "scheduler_sim/serving/clock.hpp"
#include "scheduler_sim/serving/model_executor.hpp"

namespace loratory::gpu {

/// A model on the GPU of this machine, and engines for it: what a program needs that serves it.
/// Builds with and without CUDA.
class GpuModel {
 public:
  virtual ~GpuModel() = default;
  virtual const reference::ModelConfig& config() const = 0;
  virtual reference::Dtype dtype() const = 0;
  /// Of an engine beside these weights, on what the GPU has left.
  virtual EngineMemory plan_memory(const sim::SchedulerConfig& config,
                                   const EngineOptions& options) const = 0;
  /// `clock` and this object outlive the executor. One at a time.
  /// Errors   InputError: it does not fit, in one line. std::runtime_error from CUDA.
  virtual std::unique_ptr<sim::ModelExecutor> start(const sim::SchedulerConfig& config,
                                                    const EngineOptions& options,
                                                    sim::Clock& clock) = 0;
};

/// A Hugging Face folder, in `dtype`, or that of its configuration.
/// Errors   InputError: a build without CUDA, a machine without a GPU of sm_90, and those of
///          DeviceModel::load().
std::unique_ptr<GpuModel> load_gpu_model(const std::string& directory,
                                         std::optional<reference::Dtype> dtype);

/// Random weights in `dtype`, or that of `config`: for measurements, which no checkpoint needs.
/// Errors   as above.
std::unique_ptr<GpuModel> random_gpu_model(const reference::ModelConfig& config,
                                           std::optional<reference::Dtype> dtype);

}  // namespace loratory::gpu
