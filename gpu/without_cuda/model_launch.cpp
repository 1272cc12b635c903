// In a build without a CUDA compiler the arguments of every kernel of a model are checked, and
// nothing is launched.
#include "gpu/model/model_launch.hpp"

#include <stdexcept>
#include <string>

namespace loratory::gpu {
namespace {

[[noreturn]] void refuse(const char* what) {
  throw std::runtime_error(std::string(what) + ": this build of loratory has no CUDA kernels");
}

}  // namespace

void launch_norm(const NormLaunch&, CUstream_st*, LaunchOrder) { refuse("rms_norm"); }
void launch_activation(const ActivationLaunch&, CUstream_st*, LaunchOrder) { refuse("silu_mul"); }
void launch_embed(const EmbedLaunch&, CUstream_st*, LaunchOrder) { refuse("embed"); }
void launch_embedding_shrink(const EmbeddingShrinkLaunch&, CUstream_st*, LaunchOrder) {
  refuse("shrink_embedding");
}
void launch_lora_bias(const LoraBiasLaunch&, CUstream_st*, LaunchOrder) { refuse("add_lora_bias"); }
void launch_rotary(const RotaryLaunch&, CUstream_st*, LaunchOrder) { refuse("rotary"); }

}  // namespace loratory::gpu
