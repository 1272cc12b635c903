#include "gpu/api/lora_layer.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "gpu/api/layer_views.hpp"
#include "gpu/plan/kernel_shape.hpp"
#include "gpu/plan/quantized_plan.hpp"
#include "gpu/plan/variant_table.hpp"
#include "gpu/runtime/device_ability.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::gpu {

using reference::Dtype;
using reference::IntermediateMode;
using reference::SumMode;

// --- the layer --------------------------------------------------------------------------------

void LoraLayer::require(bool ok, const std::string& place, const std::string& rule) const {
  if (!ok) throw InputError(fmt::format("{}: {}", name(desc_.op), place), rule);
}

void LoraLayer::check_view(const std::string& place, const DeviceView& view, int num_axes,
                           bool may_be_8_bit) const {
  require(view.num_axes == num_axes, place,
          fmt::format("has shape {}, needs {} axes", shape_of_view(view), num_axes));
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
  require(may_be_8_bit || !is_quantized(view.dtype), place,
          fmt::format("is {}, needs f32, bf16 or f16", name(view.dtype)));
  const auto address = reinterpret_cast<uintptr_t>(view.data);
  require(address % size_bytes(view.dtype) == 0, place, "is not aligned to its numbers");
}

LoraLayer::LoraLayer(LoraLayerDesc desc) : desc_(std::move(desc)) {
  const auto num_slices = desc_.slices.size();
  require(num_slices >= 1 && num_slices <= size_t(kMaxSlices), "slices",
          fmt::format("has {} slices, needs 1 to {}", num_slices, kMaxSlices));
  require(!is_gated(desc_.op), "op", "is that of a launch, not of a layer");
  require(desc_.offset_start >= 0, "offset_start", "is negative");
  const DeviceView& first = shrinks() ? desc_.slices[0].a : desc_.slices[0].b;
  weight_ = first.dtype;
  num_slots_ = first.shape[0];
  num_columns_ = desc_.offset_start;
  for (size_t i = 0; i < num_slices; ++i) {
    add_slice(i);
    if (has_8_bits()) add_factors(i);
  }
  check_experts();
  params_.num_experts = desc_.experts.num_experts;
  params_.rows_per_x = desc_.experts.rows_per_x;
  if (expands()) params_.router_weights = desc_.experts.router_weights;
  params_.num_in = shrinks() ? int32_t(first.shape[2]) : 0;
  params_.num_slices = int32_t(num_slices);
  params_.max_rank = int32_t(max_rank_);
  params_.add_inputs = desc_.add_inputs;
  const IntermediateMode h = desc_.mode.h;
  // An expand takes h as the buffer has it; only a linear rounds h as a buffer would.
  params_.split_h = h != IntermediateMode::cast_to_weight &&
                    (h != IntermediateMode::store_as_x || desc_.op == LoraOp::expand);
  params_.two_round = desc_.mode.sum == SumMode::two_round;
  require(reinterpret_cast<uintptr_t>(desc_.workspace) % alignof(float) == 0, "workspace",
          "is not aligned to its numbers");
  set_split_sums();
}

void LoraLayer::check_weight(const std::string& place, const DeviceView& weight) const {
  check_view(place, weight, 3, /*may_be_8_bit=*/true);
  require(weight.dtype == weight_ || (has_8_bits() && is_quantized(weight.dtype)), place,
          fmt::format("is {}, the layer's first weight is {}", name(weight.dtype), name(weight_)));
  require(weight.shape[0] == num_slots_, place,
          fmt::format("has {} slots, the layer's first weight {}", weight.shape[0], num_slots_));
}

void LoraLayer::check_experts() const {
  const LoraExperts& experts = desc_.experts;
  require(experts.num_experts >= 1, "experts.num_experts", "must be at least 1");
  require(experts.rows_per_x >= 1, "experts.rows_per_x", "must be at least 1");
  require(num_slots() < INT32_MAX, "experts.num_experts", "has 2^31 slots and experts or more");
  for (const LoraSliceDesc& slice : desc_.slices) {
    require(slice.a_expert_stride >= 0 && slice.b_expert_stride >= 0, "slices",
            "an expert stride is negative");
    require(slice.a_rank_steps == 0 || experts.num_experts == 1, "slices",
            "a_rank_steps and experts do not go together");
  }
}

void LoraLayer::check_slice(const std::string& place, const LoraSliceDesc& slice) const {
  if (shrinks()) {
    check_weight(place + ".a", slice.a);
    require(slice.a_rank_steps >= 0 && slice.a_rank_steps < kMaxSlices, place + ".a_rank_steps",
            fmt::format("is outside [0, {})", kMaxSlices));
    require(slice.a.shape[2] == desc_.slices[0].a.shape[2] && slice.a.shape[2] >= 1, place + ".a",
            "needs the in-features of slice 0, at least 1");
  }
  if (expands()) {
    check_weight(place + ".b", slice.b);
    require(slice.scalings != nullptr, place + ".scalings", "is null");
  }
  if (shrinks() && expands()) {
    require(slice.a.shape[1] == slice.b.shape[2], place + ".b", "differs from a in rank");
  }
  const int64_t rank = shrinks() ? slice.a.shape[1] : slice.b.shape[2];
  require(rank >= 1 && rank <= kMostRanks, place + (shrinks() ? ".a" : ".b"),
          fmt::format("has room for rank {}, needs 1 to {}", rank, kMostRanks));
  require(slice.ranks != nullptr, place + ".ranks", "is null");
}

void LoraLayer::add_slice(size_t i) {
  const LoraSliceDesc& slice = desc_.slices[i];
  const std::string place = fmt::format("slices[{}]", i);
  check_slice(place, slice);
  SliceParams& out = params_.slices[i];
  out.ranks = slice.ranks;
  if (shrinks()) {
    out.a = static_cast<const uint16_t*>(slice.a.data);
    out.a_slot_stride = slice.a.strides[0];
    out.a_row_stride = slice.a.strides[1];
    out.a_rank_steps = slice.a_rank_steps;
    out.a_expert_stride = slice.a_expert_stride;
    weights_aligned_ =
        weights_aligned_ && is_aligned(slice.a) && slice.a_expert_stride % kColumnsPerVec == 0;
  }
  if (expands()) {
    out.b = static_cast<const uint16_t*>(slice.b.data);
    out.b_slot_stride = slice.b.strides[0];
    out.b_row_stride = slice.b.strides[1];
    out.b_expert_stride = slice.b_expert_stride;
    out.scalings = slice.scalings;
    out.num_out = int32_t(slice.b.shape[1]);
    out.offset = int32_t(num_columns_);
    weights_aligned_ =
        weights_aligned_ && is_aligned(slice.b) && slice.b.shape[1] % kColumnsPerVec == 0 &&
        num_columns_ % kColumnsPerVec == 0 && slice.b_expert_stride % kColumnsPerVec == 0;
    num_columns_ += slice.b.shape[1];
    require(num_columns_ < INT32_MAX, place, "ends at column 2^31 or later");
    params_.max_columns = std::max(params_.max_columns, out.num_out);
    params_.num_columns += out.num_out;
  }
  const int64_t rank = shrinks() ? slice.a.shape[1] : slice.b.shape[2];
  max_rank_ = std::max(max_rank_, rank);
  num_rank_tiles_ += (rank + 15) / 16;
}

// --- what is chosen ---------------------------------------------------------------------------

bool LoraLayer::are_aligned(const LoraTensors& tensors) const {
  return weights_aligned_ && (!shrinks() || is_aligned(tensors.x)) &&
         (!expands() || is_aligned(tensors.y));
}

int64_t LoraLayer::num_tokens(const LoraTensors& tensors) const {
  return shrinks() ? tensors.x.shape[0] * desc_.experts.rows_per_x : tensors.y.shape[0];
}

size_t workspace_bytes(int64_t num_tokens, int64_t num_slices, int64_t max_rank) {
  return size_t(num_slices * num_tokens * h_row_size(max_rank)) * sizeof(float);
}

// Sums first: vectors of 16 bytes.
constexpr int64_t kSplitBytes = kSplitUnitBytes + int64_t{sizeof(int32_t)};

// Of a row: rank blocks have up to four tiles.
int64_t split_units(int64_t rank_tiles) { return (rank_tiles + 3) / 4 * 4; }

size_t split_sums_bytes(int64_t num_tokens, int64_t num_slices, int64_t max_rank) {
  return size_t(num_tokens * split_units(num_slices * ((max_rank + 15) / 16)) * kSplitBytes);
}

void LoraLayer::set_split_sums() {
  if (desc_.split_sums == nullptr) return;
  require(reinterpret_cast<uintptr_t>(desc_.split_sums) % kVectorBytes == 0, "split_sums",
          "is not at a multiple of 16 bytes");
  num_split_units_ = int64_t(desc_.split_sums_bytes) / kSplitBytes;
  params_.split_sums = static_cast<std::byte*>(desc_.split_sums);
  params_.split_counts =
      reinterpret_cast<int32_t*>(params_.split_sums + num_split_units_ * kSplitUnitBytes);
}

bool LoraLayer::has_workspace(int64_t num_tokens) const {
  return desc_.workspace != nullptr &&
         desc_.workspace_bytes >= workspace_bytes(num_tokens, params_.num_slices, max_rank_);
}

int64_t LoraLayer::most_slots(const LoraTensors& tensors) const {
  return std::min(num_slots_, tensors.max_adapters) * desc_.experts.num_experts;
}

LaunchShape LoraLayer::shape_of(const LoraTensors& tensors) const {
  return {.op = desc_.op,
          .num_tokens = num_tokens(tensors),
          .num_in = params_.num_in,
          .max_rank = max_rank_,
          .num_slices = params_.num_slices,
          .num_slots = most_slots(tensors),
          .has_experts = desc_.experts.num_experts > 1,
          .has_router_weights = params_.router_weights != nullptr,
          .num_rank_blocks = (num_rank_tiles_ + 3) / 4,
          .num_columns = params_.num_columns,
          .idle_sms = tensors.idle_sms,
          .has_workspace = has_workspace(num_tokens(tensors)),
          .num_split_units = num_split_units_,
          .aligned = are_aligned(tensors),
          .has_clusters = has_clusters(),
          .has_wgmma = has_wgmma()};
}

LoraVariant LoraLayer::variant_for(const LoraTensors& tensors) const {
  return has_8_bits() ? choose_quantized_variant(shape_of(tensors), fits_one_launch(tensors))
                      : choose_variant(shape_of(tensors));
}

bool LoraLayer::gains_by_idle_sms(const LoraTensors& tensors) const {
  return gpu::gains_by_idle_sms(shape_of(tensors));
}

LoraDtypes LoraLayer::dtypes(const LoraTensors& tensors) const {
  return {.x = tensors.x.dtype, .weight = weight_, .h = tensors.h.dtype, .y = tensors.y.dtype};
}

LoraPath LoraLayer::path_for(const LoraTensors& tensors) const {
  if (!has_8_bits()) {
    const LoraPath path = choose_path(desc_.op, dtypes(tensors), desc_.mode);
    // A weighted h of 16 bits needs hi + lo.
    const bool can_weigh = params_.router_weights == nullptr || params_.split_h;
    return can_weigh ? path : LoraPath::generic;
  }
  const bool is_fast =
      (!shrinks() || shrink_path(tensors) == LoraPath::tensor_core) &&
      (!expands() || expand_path(tensors, h_dtype(tensors)) == LoraPath::tensor_core);
  return is_fast ? LoraPath::tensor_core : LoraPath::generic;
}

// --- the tensors of a launch ------------------------------------------------------------------

void LoraLayer::check_x(const DeviceView& x) const {
  check_view("x", x, 2, has_8_bits());
  require(x.shape[1] == params_.num_in, "x",
          fmt::format("has {} columns, the layer {}", x.shape[1], params_.num_in));
}

void LoraLayer::check_h(const LoraTensors& tensors) const {
  const DeviceView& h = tensors.h;
  check_view("h", h, 3, has_8_bits() && !shrinks());
  require(h.shape[0] == params_.num_slices, "h",
          fmt::format("has {} slices, the layer {}", h.shape[0], params_.num_slices));
  require(h.shape[1] == num_tokens(tensors), "h",
          fmt::format("has {} rows, {} has {}", h.shape[1], shrinks() ? "x" : "y",
                      num_tokens(tensors)));
  require(h.shape[2] >= max_rank_, "h",
          fmt::format("has room for rank {}, the layer for {}", h.shape[2], max_rank_));
  if (!shrinks() || h.shape[1] == 0) return;
  for (size_t axis = 0; axis < 2; ++axis) {
    require(h.shape[axis] <= 1 || h.strides[axis] >= max_rank_, "h", "has rows that overlap");
  }
}

void LoraLayer::check_y(const LoraTensors& tensors) const {
  const DeviceView& y = tensors.y;
  check_view("y", y, 2);
  require(!shrinks() || num_tokens(tensors) == y.shape[0], "y",
          fmt::format("has {} rows, x has {}", y.shape[0], num_tokens(tensors)));
  require(y.shape[1] >= num_columns_, "y",
          fmt::format("has {} columns, the slices end at {}", y.shape[1], num_columns_));
  require(y.shape[0] <= 1 || y.strides[0] >= num_columns_, "y", "has rows that overlap");
}

void LoraLayer::check_tensors(const LoraTensors& tensors, const SegmentView& segments) const {
  if (shrinks()) check_x(tensors.x);
  if (expands()) check_y(tensors);
  if (desc_.op != LoraOp::linear) check_h(tensors);
  require(segments.num_segments != nullptr && segments.segments != nullptr &&
              segments.token_indices != nullptr,
          "segments", "is null");
  if (has_8_bits()) check_factors(tensors);
}

void LoraLayer::check_variant(const LoraVariant& variant, LoraPath path,
                              const LoraTensors& tensors) const {
  const auto require_of = [&](bool ok, const char* rule) {
    if (!ok) require(false, "variant", fmt::format("{}: {}", rule, describe(variant)));
  };
  if (path == LoraPath::generic) {  // takes any, and its segments
    require_of(
        std::min({variant.rank_tiles, variant.token_tiles, variant.cluster, variant.warps}) >= 1,
        "needs positive sizes");
    return;
  }
  require_of(has_kernel(desc_.op, variant), "has no kernel");
  require_of(variant.cluster == 1 || has_clusters(),
             "needs clusters, which this GPU lacks: it is older than sm_90");
  require_of(!variant.needs_wgmma() || has_wgmma(),
             "needs wgmma, which this GPU lacks: it is not sm_90");
  require_of(!variant.aligned || are_aligned(tensors), "needs aligned tensors");
  const bool weighs = params_.router_weights != nullptr && desc_.op == LoraOp::linear;
  require_of(!weighs || variant.launches == 2, "cannot weigh rows in one launch");
  const int64_t rows = num_tokens(tensors);
  if (desc_.op == LoraOp::linear && variant.launches == 2 && !has_workspace(rows)) {
    require(false, "workspace",
            fmt::format("has {} bytes, the variant needs {}", desc_.workspace_bytes,
                        workspace_bytes(rows, params_.num_slices, max_rank_)));
  }
}

/// Only an expand takes a segment in several parts.
int32_t LoraLayer::parts_per_segment(const LoraVariant& variant,
                                     const SegmentView& segments) const {
  const int32_t size = variant.segment_size();
  const bool may_cut = desc_.op == LoraOp::expand;
  const int32_t parts = may_cut ? std::max(1, segments.segment_size / size) : 1;
  require(segments.segment_size == parts * size, "segments",
          fmt::format("has segments of {} tokens, the kernel needs {}{}", segments.segment_size,
                      may_cut ? "a multiple of " : "", size));
  return parts;
}

// --- the launch -------------------------------------------------------------------------------

KernelParams LoraLayer::params(const LoraTensors& tensors, const SegmentView& segments) const {
  KernelParams out = params_;
  out.x = static_cast<const uint16_t*>(tensors.x.data);
  out.x_row_stride = tensors.x.strides[0];
  out.y = tensors.y.data;
  out.y_row_stride = tensors.y.strides[0];
  out.h = static_cast<float*>(tensors.h.data);
  out.h_slice_stride = tensors.h.strides[0];
  out.h_row_stride = tensors.h.strides[1];
  out.h_aligned = desc_.op != LoraOp::linear && has_aligned_rows(tensors.h, kVectorBytes);
  out.num_rows = int32_t(num_tokens(tensors));
  out.num_segments = segments.num_segments;
  out.segments = segments.segments;
  out.token_indices = segments.token_indices;
  if (segments.max_segments > 0) {
    const int64_t most =
        max_segments(num_tokens(tensors), int32_t(most_slots(tensors)), segments.segment_size);
    out.max_segments = int32_t(std::min<int64_t>(segments.max_segments, most));
  }
  return out;
}

/// How much h a work tile keeps in shared memory: of all slices, or of one at a time.
void LoraLayer::set_h(const LoraVariant& variant, KernelParams& out) const {
  const int padding = variant.needs_wgmma() ? kPanelRanks : 16;
  out.h_width = 0;
  for (const LoraSliceDesc& slice : desc_.slices) {
    out.h_width += padded_rank(int(slice.b.shape[2]), padding);
  }
  out.all_slices_fit = out.h_width <= kMostRanks;
  if (!out.all_slices_fit) out.h_width = padded_rank(int(max_rank_), padding);
}

namespace {

/// Columns of a work item: as many as a cluster computes at once, or a multiple in long prefill. A
/// CTA then seldom meets two segments, and reads h of one. h in splits is eight times as much.
/// Measured: docs/kernel_measurements.md, prefill in a model.
int32_t columns_at_once(LoraOp op, const LoraVariant& variant, const KernelParams& p) {
  constexpr int32_t kManyTokens = 2048;
  const int32_t least = variant.cluster * variant.warps * tile_columns(variant.token_tiles);
  if (op != LoraOp::expand || !variant.needs_wgmma()) return least;
  if (p.h_split_stride != 0) return 4 * least;
  return p.num_rows >= kManyTokens ? 2 * least : least;
}

}  // namespace

/// The work items of a segment: its rank blocks, its splits, or some of its columns. A smaller part
/// of the columns is not worth a cluster.
void LoraLayer::set_items(LoraOp op, const LoraVariant& variant, KernelParams& out) const {
  if (op == LoraOp::shrink) {
    out.num_items = int32_t((num_rank_tiles_ + variant.rank_tiles - 1) / variant.rank_tiles);
    if (!variant.through_memory) return;
    const int64_t units = out.num_rows * split_units(num_rank_tiles_);
    require(units <= num_split_units_, "split_sums",
            fmt::format("has {} bytes, the variant needs {}", desc_.split_sums_bytes,
                        units * kSplitBytes));
    return;
  }
  set_h(variant, out);
  if (op == LoraOp::gated_expand_shrink) {
    out.num_items = out.max_items = kNumSplits;
    return;
  }
  const int32_t at_once = columns_at_once(op, variant, out);
  out.num_items = std::max(1, out.num_columns / at_once);
  out.max_items = std::max(1, out.max_columns / at_once);
}

/// One slice at a time, CTAs that compute columns of a narrow slice have less work than others.
/// Eight tokens leave room for h of more ranks. Where segments have few tokens, h is read quickly.
void LoraLayer::fuse_slices(const LoraVariant& variant, int64_t num_tokens,
                            KernelParams& out) const {
  const bool has_few_tokens_each = out.max_segments >= 8 && num_tokens < 2 * out.max_segments;
  if (out.all_slices_fit || variant.is_wide() || !has_few_tokens_each) return;
  int32_t width = 0;
  for (const LoraSliceDesc& slice : desc_.slices) width += padded_rank(int(slice.b.shape[2]));
  if (width > kMostRanksOfEight) return;
  out.all_slices_fit = true;
  out.h_width = width;
}

void LoraLayer::launch_variant(const LoraVariant& variant, const LoraTensors& tensors,
                               const SegmentView& segments, CUstream_st* stream,
                               LaunchOrder order) const {
  check_tensors(tensors, segments);
  if (has_8_bits()) {
    launch_8_bits(variant, tensors, segments, stream, order);
    return;
  }
  const LoraPath path = path_for(tensors);
  check_variant(variant, path, tensors);
  KernelParams filled = params(tensors, segments);
  set_items(desc_.op, variant, filled);
  filled.parts_per_segment = parts_per_segment(variant, segments);
  if (desc_.op == LoraOp::expand) fuse_slices(variant, num_tokens(tensors), filled);
  if (num_tokens(tensors) == 0) return;
  const LoraLaunch launch{.op = desc_.op,
                          .path = path,
                          .variant = variant,
                          .dtypes = dtypes(tensors),
                          .mode = desc_.mode,
                          .params = filled,
                          .stream = stream,
                          .order = order};
  if (desc_.op == LoraOp::linear && path == LoraPath::tensor_core && variant.launches == 2) {
    launch_both(launch, LoraOp::expand,
                choose_expand_variant(shape_of(tensors), variant.token_tiles));
  } else {
    launch_lora(launch);
  }
}

/// A shrink into the workspace and an expand from it. The second launch may overlap the first,
/// which writes neither weights nor segments.
void LoraLayer::launch_both(const LoraLaunch& launch, LoraOp expand_op,
                            const LoraVariant& expand) const {
  const int64_t num_tokens = launch.params.num_rows;
  LoraLaunch half = launch;
  half.params.h = static_cast<float*>(desc_.workspace);
  half.params.h_row_stride = h_row_size(max_rank_);
  half.params.h_slice_stride = num_tokens * half.params.h_row_stride;
  half.params.h_aligned = reinterpret_cast<uintptr_t>(desc_.workspace) % kVectorBytes == 0;

  half.op = LoraOp::shrink;
  half.variant.launches = 1;
  half.params.x_is_ready =
      launch.order == LaunchOrder::x_is_ready && launch.variant.may_read_x_early();
  set_items(half.op, half.variant, half.params);
  launch_lora(half);

  half.op = expand_op;
  half.variant = expand;
  half.params.parts_per_segment = launch.variant.token_tiles / half.variant.token_tiles;
  set_items(half.op, half.variant, half.params);
  fuse_slices(half.variant, num_tokens, half.params);
  // A shrink of many tokens lets the expand start once y is settled, unless it reads x early.
  half.params.may_read_y_early = launch.variant.is_wide() && !half.params.x_is_ready;
  half.params.x_is_ready = false;
  half.order = LaunchOrder::overlaps_previous;
  launch_lora(half);
}

}  // namespace loratory::gpu
