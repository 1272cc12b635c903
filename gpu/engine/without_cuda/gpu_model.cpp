#include "gpu/engine/gpu_model.hpp"

#include "reference/base/input_error.hpp"

namespace loratory::gpu {

namespace {

[[noreturn]] void refuse() {
  throw InputError("--executor", "this build has no GPU engine", "use --executor reference");
}

}  // namespace

std::unique_ptr<GpuModel> load_gpu_model(const std::string&, std::optional<reference::Dtype>) {
  refuse();
}

std::unique_ptr<GpuModel> random_gpu_model(const reference::ModelConfig&,
                                           std::optional<reference::Dtype>) {
  refuse();
}

}  // namespace loratory::gpu
