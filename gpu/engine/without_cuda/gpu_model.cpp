#include "gpu/engine/gpu_model.hpp"

#include "reference/base/input_error.hpp"

namespace loratory::gpu {

std::unique_ptr<GpuModel> load_gpu_model(const std::string&, std::optional<reference::Dtype>) {
  throw InputError("--executor", "this build has no GPU engine", "use --executor reference");
}

}  // namespace loratory::gpu
