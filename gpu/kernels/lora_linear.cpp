#include "gpu/kernels/lora_linear.hpp"

#include <algorithm>
#include <string>

#include "gpu/kernels/lora_shape.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::IntermediateMode;
using reference::ScaleMode;
using reference::SumMode;

void require(bool ok, const std::string& place, const std::string& rule) {
  if (!ok) throw InputError("lora_linear: " + place, rule);
}

std::string list(const DeviceView& view) {
  std::string out = "[";
  for (int i = 0; i < view.num_axes; ++i) {
    out += (i == 0 ? "" : ", ") + std::to_string(view.shape[size_t(i)]);
  }
  return out + "]";
}

void check_view(const std::string& place, const DeviceView& view, int num_axes) {
  require(view.num_axes == num_axes, place,
          "has shape " + list(view) + ", needs " + std::to_string(num_axes) + " axes");
  bool is_empty = false;
  for (int i = 0; i < num_axes; ++i) {
    const auto axis = size_t(i);
    require(view.shape[axis] >= 0, place, "has a negative size");
    require(view.shape[axis] < INT32_MAX, place, "has an axis of 2^31 or more");
    require(view.strides[axis] >= 0, place, "has a negative stride");
    require(i == 0 || view.strides[axis] < (int64_t{1} << 30), place,
            "has rows of 2^30 numbers or more");
    is_empty = is_empty || view.shape[axis] == 0;
  }
  require(view.shape[size_t(num_axes - 1)] <= 1 || view.strides[size_t(num_axes - 1)] == 1, place,
          "needs an innermost stride of 1");
  require(is_empty || view.data != nullptr, place, "is null");
  const auto address = reinterpret_cast<uintptr_t>(view.data);
  require(address % size_bytes(view.dtype) == 0, place, "is not aligned to its numbers");
}

bool is_aligned(const DeviceView& view, int64_t elements) {
  const auto bytes = elements * int64_t(size_bytes(view.dtype));
  bool ok = reinterpret_cast<uintptr_t>(view.data) % uintptr_t(bytes) == 0;
  for (int i = 0; i + 1 < view.num_axes; ++i) ok = ok && view.strides[size_t(i)] % elements == 0;
  return ok && view.shape[size_t(view.num_axes - 1)] % elements == 0;
}

bool is_weight(Dtype dtype) { return dtype == Dtype::bf16 || dtype == Dtype::f16; }

void check_mode(const reference::NumericMode& mode) {
  require(mode.h != IntermediateMode::cast_to_weight, "mode.h",
          "cast_to_weight is not there; store_as_x rounds h to the same dtype");
  require(mode.scale == ScaleMode::accumulator, "mode.scale", "folded_b is not there");
}

/// The first columns that y's rows are read and written in at once, in numbers.
constexpr int64_t kOutColumns = 8;
constexpr int64_t kInColumns = 8;
/// Ranks that a segment has shared memory for.
constexpr int kMostRanks = 512;

}  // namespace

LoraVariant choose_variant(int64_t num_tokens, int64_t num_in, int64_t max_rank, bool aligned) {
  if (!aligned) return {.rank_tiles = 2, .token_tiles = 1, .cluster = 8, .aligned = false};
  constexpr int64_t kDecodeTokens = 256;  // beyond: more tokens than a segment of 8 is good for
  if (num_tokens > kDecodeTokens) return {4, 4, 8, true};
  if (max_rank > 16) return {num_in > 8192 ? 4 : 2, 1, 8, true};
  constexpr int64_t kFewTokens = 64;  // that many units of 8 CTAs fit the GPU at once
  return {1, 1, num_tokens > kFewTokens ? 2 : 8, true};
}

std::string describe(const LoraVariant& v) {
  return "r" + std::to_string(16 * v.rank_tiles) + " t" + std::to_string(v.segment_size()) + " c" +
         std::to_string(v.cluster) + (v.aligned ? "" : " unaligned");
}

LoraLinear::LoraLinear(LoraLinearDesc desc) : desc_(std::move(desc)) {
  const auto num_slices = desc_.slices.size();
  require(
      num_slices >= 1 && num_slices <= size_t(kMaxSlices), "slices",
      "has " + std::to_string(num_slices) + " slices, needs 1 to " + std::to_string(kMaxSlices));
  require(desc_.offset_start >= 0, "offset_start", "is negative");
  check_mode(desc_.mode);
  const DeviceView& first = desc_.slices[0].a;
  weights_aligned_ = true;
  int sum_of_ranks = 0;
  num_columns_ = desc_.offset_start;
  for (size_t i = 0; i < num_slices; ++i) {
    const LoraSliceDesc& slice = desc_.slices[i];
    const std::string place = "slices[" + std::to_string(i) + "]";
    check_view(place + ".a", slice.a, 3);
    check_view(place + ".b", slice.b, 3);
    require(is_weight(slice.a.dtype) && slice.a.dtype == first.dtype, place + ".a",
            "is " + std::string(name(slice.a.dtype)) + ", needs bf16 or f16, one for all slices");
    require(slice.b.dtype == first.dtype, place + ".b", "differs from a in dtype");
    require(slice.a.shape[0] == first.shape[0] && slice.b.shape[0] == first.shape[0], place,
            "differs from slice 0 in the number of slots");
    require(slice.a.shape[2] == first.shape[2] && first.shape[2] >= 1, place + ".a",
            "needs the in-features of slice 0, at least 1");
    require(slice.a.shape[1] == slice.b.shape[2], place + ".b", "differs from a in rank");
    require(slice.a.shape[1] >= 1 && slice.a.shape[1] <= 512, place + ".a",
            "has room for rank " + std::to_string(slice.a.shape[1]) + ", needs 1 to 512");
    require(slice.ranks != nullptr, place + ".ranks", "is null");
    require(slice.scalings != nullptr, place + ".scalings", "is null");
    weights_aligned_ = weights_aligned_ && is_aligned(slice.a, kInColumns) &&
                       is_aligned(slice.b, kInColumns) && slice.b.shape[1] % kOutColumns == 0 &&
                       num_columns_ % kOutColumns == 0;
    params_.slices[i] = {.a = static_cast<const uint16_t*>(slice.a.data),
                         .b = static_cast<const uint16_t*>(slice.b.data),
                         .a_slot_stride = slice.a.strides[0],
                         .a_row_stride = slice.a.strides[1],
                         .b_slot_stride = slice.b.strides[0],
                         .b_row_stride = slice.b.strides[1],
                         .ranks = slice.ranks,
                         .scalings = slice.scalings,
                         .num_out = int32_t(slice.b.shape[1]),
                         .offset = int32_t(num_columns_)};
    num_columns_ += slice.b.shape[1];
    require(num_columns_ < INT32_MAX, place, "ends at column 2^31 or later");
    max_rank_ = std::max(max_rank_, slice.a.shape[1]);
    params_.max_tiles = std::max(params_.max_tiles, int32_t((slice.b.shape[1] + 31) / 32));
    sum_of_ranks += padded_rank(int(slice.a.shape[1]));
  }
  params_.may_fuse = sum_of_ranks <= kMostRanks;
  params_.h_width = params_.may_fuse ? sum_of_ranks : padded_rank(int(max_rank_));
  params_.num_in = int32_t(first.shape[2]);
  params_.num_slices = int32_t(num_slices);
  params_.add_inputs = desc_.add_inputs;
  params_.split_h = desc_.mode.h != IntermediateMode::store_as_x;
  params_.two_round = desc_.mode.sum == SumMode::two_round;
}

LoraVariant LoraLinear::variant_for(const DeviceView& x, const DeviceView& y) const {
  const bool aligned = weights_aligned_ && is_aligned(x, kInColumns) && is_aligned(y, kOutColumns);
  return choose_variant(x.shape[0], params_.num_in, max_rank_, aligned);
}

LinearParams LoraLinear::params(const DeviceView& x, const DeviceView& y,
                                const SegmentView& segments) const {
  const Dtype weight = desc_.slices[0].a.dtype;
  check_view("x", x, 2);
  check_view("y", y, 2);
  require(x.dtype == weight, "x", "is " + std::string(name(x.dtype)) + ", the weights are not");
  require(y.dtype == weight || y.dtype == Dtype::f32, "y",
          "is " + std::string(name(y.dtype)) + ", needs f32 or the dtype of the weights");
  require(x.shape[1] == params_.num_in, "x",
          "has " + std::to_string(x.shape[1]) + " columns, the layer " +
              std::to_string(params_.num_in));
  require(x.shape[0] == y.shape[0], "y", "has not the rows of x");
  require(y.shape[1] >= num_columns_, "y",
          "has " + std::to_string(y.shape[1]) + " columns, the slices end at " +
              std::to_string(num_columns_));
  require(segments.num_segments != nullptr && segments.segments != nullptr &&
              segments.token_indices != nullptr,
          "segments", "is null");
  LinearParams out = params_;
  out.x = static_cast<const uint16_t*>(x.data);
  out.x_row_stride = x.strides[0];
  out.y = y.data;
  out.y_row_stride = y.strides[0];
  out.num_segments = segments.num_segments;
  out.segments = segments.segments;
  out.token_indices = segments.token_indices;
  return out;
}

void LoraLinear::launch(const DeviceView& x, const DeviceView& y, const SegmentView& segments,
                        CUstream_st* stream, LaunchOrder order) const {
  launch(variant_for(x, y), x, y, segments, stream, order);
}

void LoraLinear::launch(const LoraVariant& variant, const DeviceView& x, const DeviceView& y,
                        const SegmentView& segments, CUstream_st* stream, LaunchOrder order) const {
  const LinearParams filled = params(x, y, segments);
  require(!variant.aligned || variant_for(x, y).aligned, "variant",
          "needs aligned tensors, these are not");
  require(segments.segment_size == variant.segment_size(), "segments",
          "are of " + std::to_string(segments.segment_size) + " tokens, the kernel wants " +
              std::to_string(variant.segment_size()));
  if (x.shape[0] == 0) return;
  launch_lora_linear({.variant = variant,
                      .weight = desc_.slices[0].a.dtype,
                      .out = y.dtype,
                      .params = filled,
                      .stream = stream,
                      .order = order});
}

}  // namespace loratory::gpu
