#include "gpu/model/norm.hpp"

#include "gpu/model/model_checks.hpp"
#include "gpu/model/model_launch.hpp"

namespace loratory::gpu {
namespace {

NormLaunch checked(const RmsNormArgs& args, const std::string& place) {
  check_matrix(args.x, place + ": x");
  const int64_t hidden = args.x.shape[1];
  const int64_t num_rows = args.rows == nullptr ? args.x.shape[0] : args.y.shape[0];
  check_matrix_like(args.y, args.x.dtype, num_rows, hidden, place + ": y");
  require(args.weight.dtype == args.x.dtype && args.weight.num_axes == 1 &&
              args.weight.shape[0] == hidden && args.weight.strides[0] == 1 &&
              args.weight.data != nullptr,
          place + ": weight", "is not [hidden] of x's dtype");
  require(args.eps >= 0, place + ": eps", "is negative");
  return {.x = args.x.data,
          .delta = nullptr,
          .weight = args.weight.data,
          .y = args.y.data,
          .rows = args.rows,
          .x_stride = args.x.strides[0],
          .delta_stride = 0,
          .y_stride = args.y.strides[0],
          .num_rows = int32_t(num_rows),
          .hidden = int32_t(hidden),
          .eps = float(args.eps),
          .writes_x = false,
          .uses_vectors = hidden % 8 == 0 && has_aligned_rows(args.x) && has_aligned_rows(args.y) &&
                          reinterpret_cast<uintptr_t>(args.weight.data) % 16 == 0,
          .dtype = args.x.dtype};
}

}  // namespace

void rms_norm(const RmsNormArgs& args, CUstream_st* stream, LaunchOrder order) {
  const NormLaunch launch = checked(args, "rms_norm");
  if (launch.num_rows > 0) launch_norm(launch, stream, order);
}

void add_rms_norm(const RmsNormArgs& args, const DeviceView& delta, CUstream_st* stream,
                  LaunchOrder order) {
  NormLaunch launch = checked(args, "add_rms_norm");
  check_matrix_like(delta, args.x.dtype, args.x.shape[0], args.x.shape[1], "add_rms_norm: delta");
  launch.delta = delta.data;
  launch.delta_stride = delta.strides[0];
  launch.writes_x = args.rows == nullptr;
  launch.uses_vectors = launch.uses_vectors && has_aligned_rows(delta);
  if (launch.num_rows > 0) launch_norm(launch, stream, order);
}

}  // namespace loratory::gpu
