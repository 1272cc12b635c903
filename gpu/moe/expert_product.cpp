#include "gpu/moe/expert_product.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "gpu/model/model_checks.hpp"
#include "gpu/moe/moe_launch.hpp"

namespace loratory::gpu {

using reference::Dtype;

namespace {

bool is_multiple_of_vectors(const DeviceView& view, int64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(view.data);
  bool ok = address % 16 == 0;
  for (int i = 0; i + 1 < view.num_axes; ++i) {
    ok = ok && view.strides[size_t(i)] * bytes % 16 == 0;
  }
  return ok;
}

void check_weights(const DeviceView& w) {
  require(w.num_axes == 3, "expert_product: weights", fmt::format("has {} axes", w.num_axes));
  require(w.shape[0] >= 1 && w.shape[1] >= 1 && w.shape[2] >= 1 && w.shape[1] <= INT32_MAX &&
              w.shape[2] <= INT32_MAX,
          "expert_product: weights",
          fmt::format("has shape [{}, {}, {}]", w.shape[0], w.shape[1], w.shape[2]));
  require(w.strides[2] == 1 && w.strides[1] >= w.shape[2] && w.strides[0] >= 0,
          "expert_product: weights", "its columns do not lie side by side, or its rows overlap");
  require(w.strides[1] < int64_t{1} << 30, "expert_product: weights",
          "has rows of 2^30 numbers or more");
  require(w.data != nullptr, "expert_product: weights", "is null");
}

void check_args(const ExpertProductArgs& args) {
  check_weights(args.weights);
  const DeviceView& w = args.weights;
  check_matrix(args.x, "expert_product: x");
  check_matrix(args.y, "expert_product: y");
  require(args.rows_per_x >= 1, "expert_product: rows_per_x", "must be at least 1");
  const int64_t rows = args.x.shape[0] * args.rows_per_x;
  check_matrix_like(args.x, w.dtype, args.x.shape[0], w.shape[2], "expert_product: x");
  check_matrix_like(args.y, w.dtype, rows, w.shape[1], "expert_product: y");
  if (w.dtype == Dtype::f32) return;
  const bool has_whole_vectors = w.shape[1] % 8 == 0 && w.shape[2] % 8 == 0;
  require(has_whole_vectors, "expert_product: weights",
          fmt::format("has {} rows of {}, needs multiples of 8", w.shape[1], w.shape[2]));
  for (const DeviceView* view : {&args.x, &w, &args.y}) {
    require(is_multiple_of_vectors(*view, 2), "expert_product",
            "rows of x, weights and y must begin at multiples of 16 bytes");
  }
}

}  // namespace

int32_t expert_product_segments(Dtype dtype, int64_t num_rows, int64_t num_experts) {
  if (dtype == Dtype::f32 || num_rows <= 8 * num_experts) return 8;
  return num_rows <= 32 * num_experts ? 32 : 64;
}

void expert_product(const ExpertProductArgs& args, const GroupViews& groups, CUstream_st* stream,
                    LaunchOrder order) {
  const int32_t size = expert_product_segments(args.weights.dtype, args.y.shape[0],
                                               std::max<int64_t>(1, args.weights.shape[0]));
  expert_product_of(size, args, groups, stream, order);
}

void expert_product_of(int32_t segment_size, const ExpertProductArgs& args,
                       const GroupViews& groups, CUstream_st* stream, LaunchOrder order) {
  check_args(args);
  const SegmentView& segments = groups.of(segment_size);
  require(segments.num_segments != nullptr && segments.segments != nullptr &&
              segments.token_indices != nullptr,
          "expert_product: groups", "are null");
  const int64_t rows = args.y.shape[0];
  if (rows == 0) return;
  const int64_t most = max_segments(rows, int32_t(args.weights.shape[0]), segment_size);
  launch_expert_product(
      {.x = args.x.data,
       .weights = args.weights.data,
       .y = args.y.data,
       .x_stride = args.x.strides[0],
       .weight_stride = args.weights.strides[1],
       .expert_stride = args.weights.strides[0],
       .y_stride = args.y.strides[0],
       .num_in = int32_t(args.weights.shape[2]),
       .num_out = int32_t(args.weights.shape[1]),
       .rows_per_x = args.rows_per_x,
       .num_segments = segments.num_segments,
       .segments = segments.segments,
       .rows = segments.token_indices,
       .max_segments = int32_t(std::min<int64_t>(most, std::max(1, segments.max_segments))),
       .segment_size = segment_size,
       .dtype = args.weights.dtype},
      stream, order);
}

}  // namespace loratory::gpu
