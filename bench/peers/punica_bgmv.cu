// A C entry to Punica's bgmv kernels, for gpu_punica.py: the sizes that the bench asks for, built
// by get_gpu_peers.sh beside the unpacked sources. x bf16 -> y fp32 shrinks, fp32 -> bf16 expands.
#include <cuda_bf16.h>

#include <cstdint>

namespace {
thread_local cudaStream_t launch_stream = nullptr;
}

// What bgmv_impl.cuh takes from PyTorch: the stream, in the header of that name.
namespace at::cuda {
inline cudaStream_t getCurrentCUDAStream() { return launch_stream; }
}  // namespace at::cuda

#include "bgmv/bgmv_impl.cuh"

namespace {

template <int kRank, int kWide>
bool launch_pair(void* y, const void* x, const void* w, const int64_t* indices, int64_t num_in,
                 int64_t num_out, int64_t y_offset, int64_t y_columns, int64_t batch, float scale) {
  const auto* weight = static_cast<const nv_bfloat16*>(w);
  if (num_in == kWide && num_out == kRank) {
    bgmv_kernel<kWide, kRank>(static_cast<float*>(y), static_cast<const nv_bfloat16*>(x), weight,
                              indices, y_offset, y_columns, batch, 1, 0, scale);
    return true;
  }
  if (num_in == kRank && num_out == kWide) {
    bgmv_kernel<kRank, kWide>(static_cast<nv_bfloat16*>(y), static_cast<const float*>(x), weight,
                              indices, y_offset, y_columns, batch, 1, 0, scale);
    return true;
  }
  return false;
}

template <int kRank, int... kWide, typename... Args>
bool launch_any(Args... args) {
  return (launch_pair<kRank, kWide>(args...) || ...);
}

template <int... kRanks, typename... Args>
bool launch(Args... args) {
  return (launch_any<kRanks, 1024, 4096, 8192, 12288, 14336, 28672>(args...) || ...);
}

}  // namespace

extern "C" int punica_bgmv(void* y, const void* x, const void* w, const int64_t* indices,
                           int64_t num_in, int64_t num_out, int64_t y_offset, int64_t y_columns,
                           int64_t batch, float scale, void* stream) {
  launch_stream = static_cast<cudaStream_t>(stream);
  return launch<8, 16, 32, 64>(y, x, w, indices, num_in, num_out, y_offset, y_columns, batch,
                               scale);
}
