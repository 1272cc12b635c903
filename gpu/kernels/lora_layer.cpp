#include "gpu/kernels/lora_layer.hpp"

#include <algorithm>

#include "gpu/kernels/lora_shape.hpp"
#include "gpu/runtime/device_ability.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::IntermediateMode;
using reference::SumMode;

/// Numbers in one access of the kernel: of x, A and B; of y.
constexpr int64_t kInColumns = 8;
constexpr int64_t kOutColumns = 8;
constexpr int64_t kHBytes = 16;  // of h
/// Ranks of a row of h in the workspace.
int64_t h_row_size(int64_t max_rank) { return (max_rank + 3) / 4 * 4; }
/// Ranks that a segment has shared memory for.
constexpr int kMostRanks = 512;

std::string list(const DeviceView& view) {
  std::string out = "[";
  for (int i = 0; i < view.num_axes; ++i) {
    out += (i == 0 ? "" : ", ") + std::to_string(view.shape[size_t(i)]);
  }
  return out + "]";
}

/// Every row begins at a multiple of `bytes`.
bool has_aligned_rows(const DeviceView& view, int64_t bytes) {
  const int64_t elements = bytes / int64_t(size_bytes(view.dtype));
  bool ok = reinterpret_cast<uintptr_t>(view.data) % uintptr_t(bytes) == 0;
  for (int i = 0; i + 1 < view.num_axes; ++i) ok = ok && view.strides[size_t(i)] % elements == 0;
  return ok;
}
/// And consists of whole pieces of `elements`.
bool is_aligned(const DeviceView& view, int64_t elements) {
  if (view.num_axes < 1 || view.num_axes > int(view.shape.size())) return false;
  return has_aligned_rows(view, elements * int64_t(size_bytes(view.dtype))) &&
         view.shape[size_t(view.num_axes - 1)] % elements == 0;
}

std::string is_a(Dtype dtype) { return "is " + std::string(name(dtype)); }

}  // namespace

void LoraLayer::require(bool ok, const std::string& place, const std::string& rule) const {
  if (!ok) throw InputError(std::string(name(stage_)) + ": " + place, rule);
}

void LoraLayer::check_view(const std::string& place, const DeviceView& view, int num_axes) const {
  require(view.num_axes == num_axes, place,
          "has shape " + list(view) + ", needs " + std::to_string(num_axes) + " axes");
  bool is_empty = false;
  for (int i = 0; i < num_axes; ++i) {
    const auto axis = size_t(i);
    require(view.shape[axis] >= 0, place, "has a negative size");
    require(view.shape[axis] < INT32_MAX, place, "has an axis of 2^31 or more");
    require(view.strides[axis] >= 0, place, "has a negative stride");
    // The kernels count the bytes of a row of A and B in 32 bits.
    require(i == 0 || view.strides[axis] < (int64_t{1} << 30), place,
            "has rows of 2^30 numbers or more");
    is_empty = is_empty || view.shape[axis] == 0;
  }
  require(view.shape[size_t(num_axes - 1)] <= 1 || view.strides[size_t(num_axes - 1)] == 1, place,
          "needs an innermost stride of 1");
  require(is_empty || view.data != nullptr, place, "is null");
  require(!is_quantized(view.dtype), place, is_a(view.dtype) + ", needs f32, bf16 or f16");
  const auto address = reinterpret_cast<uintptr_t>(view.data);
  require(address % size_bytes(view.dtype) == 0, place, "is not aligned to its numbers");
}

LoraLayer::LoraLayer(LoraStage stage, LoraLinearDesc desc) : stage_(stage), desc_(std::move(desc)) {
  const auto num_slices = desc_.slices.size();
  require(
      num_slices >= 1 && num_slices <= size_t(kMaxSlices), "slices",
      "has " + std::to_string(num_slices) + " slices, needs 1 to " + std::to_string(kMaxSlices));
  require(desc_.offset_start >= 0, "offset_start", "is negative");
  const DeviceView& first = shrinks() ? desc_.slices[0].a : desc_.slices[0].b;
  weight_ = first.dtype;
  num_slots_ = first.shape[0];
  num_columns_ = desc_.offset_start;
  for (size_t i = 0; i < num_slices; ++i) add_slice(i);
  params_.num_in = shrinks() ? int32_t(first.shape[2]) : 0;
  params_.num_slices = int32_t(num_slices);
  params_.max_rank = int32_t(max_rank_);
  params_.add_inputs = desc_.add_inputs;
  const IntermediateMode h = desc_.mode.h;
  // An expand takes h as the buffer has it: only a linear rounds it as a buffer would.
  params_.split_h = h != IntermediateMode::cast_to_weight &&
                    (h != IntermediateMode::store_as_x || stage == LoraStage::expand);
  params_.two_round = desc_.mode.sum == SumMode::two_round;
  require(reinterpret_cast<uintptr_t>(desc_.workspace) % alignof(float) == 0, "workspace",
          "is not aligned to its numbers");
}

void LoraLayer::check_weight(const std::string& place, const DeviceView& weight) const {
  check_view(place, weight, 3);
  require(weight.dtype == Dtype::bf16 || weight.dtype == Dtype::f16, place,
          is_a(weight.dtype) + ", needs bf16 or f16");
  require(weight.dtype == weight_, place,
          is_a(weight.dtype) + ", the layer's first weight " + is_a(weight_));
  require(weight.shape[0] == num_slots_, place,
          "has " + std::to_string(weight.shape[0]) + " slots, the layer's first weight " +
              std::to_string(num_slots_));
}

void LoraLayer::check_slice(const std::string& place, const LoraSliceDesc& slice) const {
  if (shrinks()) {
    check_weight(place + ".a", slice.a);
    require(slice.a_rank_steps >= 0 && slice.a_rank_steps < kMaxSlices, place + ".a_rank_steps",
            "is outside [0, " + std::to_string(kMaxSlices) + ")");
    require(slice.a.shape[2] == desc_.slices[0].a.shape[2] && slice.a.shape[2] >= 1, place + ".a",
            "needs the in-features of slice 0, at least 1");
  }
  if (expands()) {
    check_weight(place + ".b", slice.b);
    require(slice.scalings != nullptr, place + ".scalings", "is null");
  }
  if (stage_ == LoraStage::linear) {
    require(slice.a.shape[1] == slice.b.shape[2], place + ".b", "differs from a in rank");
  }
  const int64_t rank = shrinks() ? slice.a.shape[1] : slice.b.shape[2];
  require(rank >= 1 && rank <= 512, place + (shrinks() ? ".a" : ".b"),
          "has room for rank " + std::to_string(rank) + ", needs 1 to 512");
  require(slice.ranks != nullptr, place + ".ranks", "is null");
}

void LoraLayer::add_slice(size_t i) {
  const LoraSliceDesc& slice = desc_.slices[i];
  const std::string place = "slices[" + std::to_string(i) + "]";
  check_slice(place, slice);
  SliceParams& out = params_.slices[i];
  out.ranks = slice.ranks;
  if (shrinks()) {
    out.a = static_cast<const uint16_t*>(slice.a.data);
    out.a_slot_stride = slice.a.strides[0];
    out.a_row_stride = slice.a.strides[1];
    out.a_rank_steps = slice.a_rank_steps;
    weights_aligned_ = weights_aligned_ && is_aligned(slice.a, kInColumns);
  }
  if (expands()) {
    out.b = static_cast<const uint16_t*>(slice.b.data);
    out.b_slot_stride = slice.b.strides[0];
    out.b_row_stride = slice.b.strides[1];
    out.scalings = slice.scalings;
    out.num_out = int32_t(slice.b.shape[1]);
    out.offset = int32_t(num_columns_);
    weights_aligned_ = weights_aligned_ && is_aligned(slice.b, kInColumns) &&
                       slice.b.shape[1] % kOutColumns == 0 && num_columns_ % kOutColumns == 0;
    num_columns_ += slice.b.shape[1];
    require(num_columns_ < INT32_MAX, place, "ends at column 2^31 or later");
    params_.max_columns = std::max(params_.max_columns, out.num_out);
    params_.num_columns += out.num_out;
  }
  const int64_t rank = shrinks() ? slice.a.shape[1] : slice.b.shape[2];
  max_rank_ = std::max(max_rank_, rank);
  num_rank_tiles_ += (rank + 15) / 16;
}

bool LoraLayer::are_aligned(const LoraTensors& tensors) const {
  return weights_aligned_ && (!shrinks() || is_aligned(tensors.x, kInColumns)) &&
         (!expands() || is_aligned(tensors.y, kOutColumns));
}

int64_t LoraLayer::num_tokens(const LoraTensors& tensors) const {
  return shrinks() ? tensors.x.shape[0] : tensors.y.shape[0];
}

size_t workspace_bytes(int64_t num_tokens, int64_t num_slices, int64_t max_rank) {
  return size_t(num_slices * num_tokens * h_row_size(max_rank)) * sizeof(float);
}

bool LoraLayer::has_workspace(int64_t num_tokens) const {
  return desc_.workspace != nullptr &&
         desc_.workspace_bytes >= workspace_bytes(num_tokens, params_.num_slices, max_rank_);
}

LaunchShape LoraLayer::shape_of(const LoraTensors& tensors) const {
  return {.stage = stage_,
          .num_tokens = num_tokens(tensors),
          .num_in = params_.num_in,
          .max_rank = max_rank_,
          .num_slices = params_.num_slices,
          .num_slots = num_slots_,
          .num_blocks = (num_rank_tiles_ + 3) / 4,
          .has_workspace = has_workspace(num_tokens(tensors)),
          .aligned = are_aligned(tensors),
          .has_clusters = has_clusters(),
          .has_wgmma = has_wgmma()};
}

LoraVariant LoraLayer::variant_for(const LoraTensors& tensors) const {
  return choose_variant(shape_of(tensors));
}

LoraDtypes LoraLayer::dtypes(const LoraTensors& tensors) const {
  return {.x = tensors.x.dtype, .weight = weight_, .h = tensors.h.dtype, .y = tensors.y.dtype};
}

LoraPath LoraLayer::path_for(const LoraTensors& tensors) const {
  return choose_path(stage_, dtypes(tensors), desc_.mode);
}

void LoraLayer::check_x(const DeviceView& x) const {
  check_view("x", x, 2);
  require(x.shape[1] == params_.num_in, "x",
          "has " + std::to_string(x.shape[1]) + " columns, the layer " +
              std::to_string(params_.num_in));
}

void LoraLayer::check_h(const LoraTensors& tensors) const {
  const DeviceView& h = tensors.h;
  check_view("h", h, 3);
  require(h.shape[0] == params_.num_slices, "h",
          "has " + std::to_string(h.shape[0]) + " slices, the layer " +
              std::to_string(params_.num_slices));
  require(h.shape[1] == num_tokens(tensors), "h",
          std::string("has not the rows of ") + (shrinks() ? "x" : "y"));
  require(h.shape[2] >= max_rank_, "h",
          "has room for rank " + std::to_string(h.shape[2]) + ", the layer for " +
              std::to_string(max_rank_));
  if (!shrinks() || h.shape[1] == 0) return;
  for (size_t axis = 0; axis < 2; ++axis) {
    require(h.shape[axis] <= 1 || h.strides[axis] >= max_rank_, "h", "has rows that overlap");
  }
}

void LoraLayer::check_y(const LoraTensors& tensors) const {
  const DeviceView& y = tensors.y;
  check_view("y", y, 2);
  require(!shrinks() || tensors.x.shape[0] == y.shape[0], "y", "has not the rows of x");
  require(y.shape[1] >= num_columns_, "y",
          "has " + std::to_string(y.shape[1]) + " columns, the slices end at " +
              std::to_string(num_columns_));
  require(y.shape[0] <= 1 || y.strides[0] >= num_columns_, "y", "has rows that overlap");
}

LinearParams LoraLayer::params(const LoraTensors& tensors, const SegmentView& segments) const {
  if (shrinks()) check_x(tensors.x);
  if (expands()) check_y(tensors);
  if (stage_ != LoraStage::linear) check_h(tensors);
  require(segments.num_segments != nullptr && segments.segments != nullptr &&
              segments.token_indices != nullptr,
          "segments", "is null");
  LinearParams out = params_;
  out.x = static_cast<const uint16_t*>(tensors.x.data);
  out.x_row_stride = tensors.x.strides[0];
  out.y = tensors.y.data;
  out.y_row_stride = tensors.y.strides[0];
  out.h = static_cast<float*>(tensors.h.data);
  out.h_slice_stride = tensors.h.strides[0];
  out.h_row_stride = tensors.h.strides[1];
  out.h_aligned = stage_ != LoraStage::linear && has_aligned_rows(tensors.h, kHBytes);
  out.num_segments = segments.num_segments;
  out.segments = segments.segments;
  out.token_indices = segments.token_indices;
  if (segments.max_segments > 0) {
    const int64_t most =
        max_segments(num_tokens(tensors), int32_t(num_slots_), segments.segment_size);
    out.max_segments = int32_t(std::min<int64_t>(segments.max_segments, most));
  }
  return out;
}

void LoraLayer::check_tensor_core(const LoraVariant& variant, const LoraTensors& tensors) const {
  require(!variant.aligned || are_aligned(tensors), "variant",
          "needs aligned tensors, these are not");
  require(
      stage_ != LoraStage::linear || variant.launches == 1 || has_workspace(num_tokens(tensors)),
      "workspace",
      "has " + std::to_string(desc_.workspace_bytes) + " bytes, the variant needs " +
          std::to_string(workspace_bytes(num_tokens(tensors), params_.num_slices, max_rank_)));
}

/// Units of tokens of a segment: only an expand alone cuts segments further.
int32_t LoraLayer::segment_parts(const LoraVariant& variant, const SegmentView& segments) const {
  const int32_t size = variant.segment_size();
  const bool may_cut = stage_ == LoraStage::expand;
  const int32_t parts = may_cut ? std::max(1, segments.segment_size / size) : 1;
  require(segments.segment_size == parts * size, "segments",
          "are of " + std::to_string(segments.segment_size) + " tokens, the kernel wants " +
              (may_cut ? "a multiple of " : "") + std::to_string(size));
  return parts;
}

/// What a unit has shared memory for: h of all slices, or of one at a time.
void LoraLayer::set_h(const LoraVariant& variant, LinearParams& out) const {
  const int padding = variant.needs_wgmma() ? kPanelRanks : 16;
  out.h_width = 0;
  for (const LoraSliceDesc& slice : desc_.slices) {
    out.h_width += padded_rank(int(slice.b.shape[2]), padding);
  }
  out.may_fuse = out.h_width <= kMostRanks;
  if (!out.may_fuse) out.h_width = padded_rank(int(max_rank_), padding);
}

/// What a segment is cut into: the blocks of its ranks, or what a cluster makes at once of its
/// columns, of which nothing smaller than the whole is worth a cluster.
void LoraLayer::set_items(LoraStage stage, const LoraVariant& variant, LinearParams& out) const {
  if (stage == LoraStage::shrink) {
    out.num_items = int32_t((num_rank_tiles_ + variant.rank_tiles - 1) / variant.rank_tiles);
    return;
  }
  set_h(variant, out);
  const int32_t at_once = variant.cluster * kGroupWarps * tile_columns(variant.token_tiles);
  out.num_items = std::max(1, out.num_columns / at_once);
  out.max_items = std::max(1, out.max_columns / at_once);
}

void LoraLayer::launch(const LoraVariant& variant, const LoraTensors& tensors,
                       const SegmentView& segments, CUstream_st* stream, LaunchOrder order) const {
  LinearParams filled = params(tensors, segments);
  set_items(stage_, variant, filled);
  const LoraPath path = path_for(tensors);
  if (path == LoraPath::tensor_core) check_tensor_core(variant, tensors);
  filled.segment_parts = segment_parts(variant, segments);
  if (num_tokens(tensors) == 0) return;
  const LoraLaunch launch{.stage = stage_,
                          .path = path,
                          .variant = variant,
                          .dtypes = dtypes(tensors),
                          .mode = desc_.mode,
                          .params = filled,
                          .stream = stream,
                          .order = order};
  if (stage_ == LoraStage::linear && path == LoraPath::tensor_core && variant.launches == 2)
    launch_both(launch, shape_of(tensors));
  else
    launch_lora(launch);
}

/// Shrink into the workspace, expand from it. The second launch may overlap the first, which writes
/// neither weights nor segments.
void LoraLayer::launch_both(const LoraLaunch& launch, const LaunchShape& shape) const {
  LoraLaunch both = launch;
  both.params.h = static_cast<float*>(desc_.workspace);
  both.params.h_row_stride = h_row_size(max_rank_);
  both.params.h_slice_stride = shape.num_tokens * both.params.h_row_stride;
  both.params.h_aligned = reinterpret_cast<uintptr_t>(desc_.workspace) % kHBytes == 0;

  both.stage = LoraStage::shrink;
  both.variant.launches = 1;
  set_items(both.stage, both.variant, both.params);
  launch_lora(both);

  both.stage = LoraStage::expand;
  both.variant = expand_variant(shape, launch.variant.token_tiles);
  both.params.segment_parts = launch.variant.token_tiles / both.variant.token_tiles;
  set_items(both.stage, both.variant, both.params);
  both.params.y_settled = launch.variant.is_wide();  // it waits before it lets the next one start
  both.order = LaunchOrder::overlaps_previous;
  launch_lora(both);
}

}  // namespace loratory::gpu
