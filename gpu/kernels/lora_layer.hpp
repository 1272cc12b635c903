#pragma once

#include <string>

#include "gpu/kernels/lora_launch.hpp"

// What LoraLinear, LoraShrink and LoraExpand share: everything is checked here.

namespace loratory::gpu {

/// The tensors of a launch; a stage looks at its own.
struct LoraTensors {
  DeviceView x;  ///< linear, shrink: [T, K]
  DeviceView h;  ///< shrink, expand: [S, T, >= largest R_i]
  DeviceView y;  ///< linear, expand: [T, >= columns]
};

class LoraLayer {
 public:
  /// A shrink has no b, scalings, offset and mode; an expand has no a.
  /// Errors   InputError naming the argument: shapes, dtypes, strides or alignment that do not fit.
  LoraLayer(LoraStage stage, LoraLinearDesc desc);

  /// Errors   InputError for a tensor, the variant or the size of the segments.
  void launch(const LoraVariant& variant, const LoraTensors& tensors, const SegmentView& segments,
              CUstream_st* stream, LaunchOrder order) const;

  LoraVariant variant_for(const LoraTensors& tensors) const;
  LoraPath path_for(const LoraTensors& tensors) const;
  int64_t num_columns() const { return num_columns_; }
  int64_t max_rank() const { return max_rank_; }

 private:
  bool shrinks() const { return stage_ != LoraStage::expand; }
  bool expands() const { return stage_ != LoraStage::shrink; }
  void require(bool ok, const std::string& place, const std::string& rule) const;
  void check_view(const std::string& place, const DeviceView& view, int num_axes) const;
  void check_slice(const std::string& place, const LoraSliceDesc& slice) const;
  void check_weight(const std::string& place, const DeviceView& weight) const;
  void add_slice(size_t i);
  bool are_aligned(const LoraTensors& tensors) const;
  LoraDtypes dtypes(const LoraTensors& tensors) const;
  int64_t num_tokens(const LoraTensors& tensors) const;
  void check_x(const DeviceView& x) const;
  void check_h(const LoraTensors& tensors) const;
  void check_y(const LoraTensors& tensors) const;
  bool has_workspace(int64_t num_tokens) const;
  LaunchShape shape_of(const LoraTensors& tensors) const;
  void launch_both(const LoraLaunch& launch, const LaunchShape& shape) const;
  void check_tensor_core(const LoraVariant& variant, const LoraTensors& tensors) const;
  LinearParams params(const LoraTensors& tensors, const SegmentView& segments) const;
  void set_h(const LoraVariant& variant, LinearParams& out) const;
  void set_items(LoraStage stage, const LoraVariant& variant, LinearParams& out) const;
  int32_t segment_parts(const LoraVariant& variant, const SegmentView& segments) const;

  LoraStage stage_;
  LoraLinearDesc desc_;
  LinearParams params_;  // all but the tensors, segments and items
  reference::Dtype weight_ = reference::Dtype::bf16;
  int64_t num_slots_ = 0;
  int64_t max_rank_ = 0;
  int64_t num_rank_tiles_ = 0;  // of 16, of all slices
  int64_t num_columns_ = 0;
  bool weights_aligned_ = true;
};

}  // namespace loratory::gpu
