// In a build without a CUDA compiler attention can be planned and checked, and nothing launched.
#include <stdexcept>

#include "gpu/attention/attention_params.hpp"

namespace loratory::gpu {
namespace {

[[noreturn]] void no_attention_kernels() {
  throw std::runtime_error("attention: this build of loratory has no CUDA kernels");
}

}  // namespace

void launch_attention_work(const AttentionLaunch&) { no_attention_kernels(); }
void launch_decode_attention(const AttentionLaunch&) { no_attention_kernels(); }
void launch_prefill_attention(const AttentionLaunch&) { no_attention_kernels(); }
void launch_plain_attention(const AttentionLaunch&) { no_attention_kernels(); }

}  // namespace loratory::gpu
