#include "gpu/model/activation.hpp"

#include "gpu/model/model_checks.hpp"
#include "gpu/model/model_launch.hpp"

namespace loratory::gpu {

using reference::Activation;

namespace {

void launch_checked(Activation activation, const std::string& what, const DeviceView& gate_up,
                    const DeviceView& y, CUstream_st* stream, LaunchOrder order) {
  check_matrix(gate_up, what + ": gate_up");
  require(gate_up.shape[1] % 2 == 0, what + ": gate_up", "has an odd number of columns");
  const int64_t size = gate_up.shape[1] / 2;
  check_matrix_like(y, gate_up.dtype, gate_up.shape[0], size, what + ": y");
  if (y.shape[0] == 0) return;
  launch_activation(
      {.gate_up = gate_up.data,
       .y = y.data,
       .in_stride = gate_up.strides[0],
       .y_stride = y.strides[0],
       .num_tokens = int32_t(y.shape[0]),
       .size = int32_t(size),
       .uses_vectors = size % 8 == 0 && has_aligned_rows(gate_up) && has_aligned_rows(y),
       .dtype = y.dtype,
       .activation = activation},
      stream, order);
}

}  // namespace

void silu_mul(const DeviceView& gate_up, const DeviceView& y, CUstream_st* stream,
              LaunchOrder order) {
  launch_checked(Activation::silu, "silu_mul", gate_up, y, stream, order);
}

void gpt_oss_mul(const DeviceView& gate_up, const DeviceView& y, CUstream_st* stream,
                 LaunchOrder order) {
  launch_checked(Activation::gpt_oss, "gpt_oss_mul", gate_up, y, stream, order);
}

}  // namespace loratory::gpu
