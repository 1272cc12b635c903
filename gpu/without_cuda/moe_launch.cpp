// In a build without a CUDA compiler the calls for experts are checked, and nothing is launched.
#include "gpu/moe/moe_launch.hpp"

#include <stdexcept>
#include <string>

namespace loratory::gpu {
namespace {

[[noreturn]] void no_expert_kernels(const char* what) {
  throw std::runtime_error(std::string(what) + ": this build of loratory has no CUDA kernels");
}

}  // namespace

void launch_router(const RouterLaunch&, CUstream_st*, LaunchOrder) { no_expert_kernels("route"); }
void launch_combine(const CombineLaunch&, CUstream_st*, LaunchOrder) {
  no_expert_kernels("combine_experts");
}
void launch_expert_product(const ExpertProductLaunch&, CUstream_st*, LaunchOrder) {
  no_expert_kernels("expert_product");
}

}  // namespace loratory::gpu
