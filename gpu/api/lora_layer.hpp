#pragma once

#include <optional>
#include <string>

#include "gpu/api/lora_desc.hpp"
#include "gpu/plan/lora_launch.hpp"
#include "gpu/plan/quantized_launch.hpp"

// LoRA on linear layers, on the GPU. Letters as in lora_desc.hpp. reference/lora/linear.hpp says
// what is computed; this page says how to ask for it.
//
// linear   y += scaling · (x A^T) B^T
//          Bound  tensor_core path: Arithmetic{mode with h = split2 in place of fp32, unit = 2^-22}
//                 of error_bound.hpp. generic path: generic_lora.hpp.
// shrink   h[i, t, j] = round_h( sum_c A_i[s(t), j, c] · x[t, c] ),  j < r(s(t), i): the first half
//          alone, for an engine that gathers h between tp_ranks. fp32 sums, rounded once to h's
//          dtype. No scaling.
//          Bound  shrink_error_bound() of error_bound.hpp with unit 2^-22 on the tensor_core path;
//                 the generic path gives the bits of the reference.
// expand   y[t, o_i + n] = base + scaling(s(t), i) · sum_j h[i, t, j] · B_i[s(t), n, j],
//          j < r(s(t), i), o_i = offset_start + N_0 + ... + N_{i-1}: the second half alone. Rounds
//          as expand() of reference/lora/linear.hpp. The tensor_core path keeps an fp32 h as
//          split2.
//          Bound  as linear with num_in = 0; the generic path gives the bits of the reference.
//
// 8-bit    A linear is the shrink into fp32 h in the workspace; of 8-bit x then the quantisation of
//          h as lora_linear_quantized() does it; the expand. Each of them is a launch. The path is
//          chosen for each stage by what never changes in a layer: dtypes, strides and alignment of
//          weights, x and y, and whether a row of a weight is under one factor
//          (quantized_plan.hpp).
//          Bound  tensor_core path: reference/quantized/oracle.hpp for a stage, with unit 2^-22; an
//                 expand of fp32 h splits it in bf16 hi + lo (docs/error_bounds.md).
//                 generic path: the bits of the reference.
//          h in 8 bits by tensor has one factor for the batch: there, and only there, a row depends
//          on its neighbours.
//
// SwiGLU   Where a linear's two slices are gate and up, its second launch can end with SwiGLU:
//          launch_silu_mul() writes silu_mul() of gpu/model/activation.hpp of what y would be, and
//          leaves y as it is. That has the bits of the linear and silu_mul(), one after the other.
//          In long prefill that launch may also be the shrink of the layer behind (down): the sums
//          of its splits go to y, and launch_behind_splits() adds what is left.
//
// Covered  Rows of tokens with an adapter, and in them columns of slices with a rank (y) or columns
//          below the rank (h). Nothing else of y and h is read or written. Of h, an expand reads
//          neither rows of base tokens nor the tail beyond the rank.
// Repeats  Bitwise. Row t depends on x[t], its slot's weights and the layer alone: not on the
//          batch, its segments, the variant, the stream, or whether a graph replays the launch.
// Source   statements [1.1]-[1.8], [1.17], [1.19].

namespace loratory::gpu {

/// The tensors of a launch. An operation ignores those of the others.
struct LoraTensors {
  DeviceView x{};        ///< linear, shrink: [T, K]
  DeviceView h{};        ///< shrink, expand: [S, T, >= largest R_i]; must not overlap x or y
  DeviceView y{};        ///< linear, expand: [T, >= columns]
  DeviceView x_scale{};  ///< of 8-bit x, beside 8-bit weights: [], [T, 1] or [T, ceil(K / k)]
  DeviceView h_scale{};  ///< expand, of 8-bit h: [S], [S, T, 1] or [S, T, ceil(R / k)]
  /// Tokens have at most so many different adapters, as far as the caller knows. Kernels and grids
  /// follow from it; results are the same bits.
  int64_t max_adapters = INT64_MAX;
  /// SMs without a part of the product of the same x that was launched just before
  /// (BaseProduct::idle_sms). Kernels follow from it; results are the same bits.
  int64_t idle_sms = 0;
};

/// The two launches of a linear that ends with SwiGLU.
struct SiluMulVariants {
  LoraVariant shrink, expand;
  bool shrinks_next = false;  ///< the second one also has the shrink of the next layer

  LoraOp expand_op() const {
    return shrinks_next ? LoraOp::gated_expand_shrink : LoraOp::gated_expand;
  }
};

/// One operation on one packed layer: checked once, launched every step.
class LoraLayer {
 public:
  /// Errors   InputError naming the argument: shapes, dtypes, strides or alignment that do not fit.
  explicit LoraLayer(LoraLayerDesc desc);

  /// For the tokens of `segments`. Their size is that of the variant that variant_for() names; an
  /// expand also takes a multiple of it.
  /// Never allocates, never waits, may be captured. Grid and arguments follow from the number of
  /// rows and the room for segments alone, so a replayed graph follows whatever segments lie on the
  /// device by then.
  /// Errors   InputError for a tensor or the segment size; std::runtime_error from CUDA.
  void launch(const LoraTensors& tensors, const SegmentView& segments, CUstream_st* stream,
              LaunchOrder order = LaunchOrder::after_previous) const {
    launch_variant(variant_for(tensors), tensors, segments, stream, order);
  }

  /// Launches another variant than the rules choose, for tests.
  /// Errors   as launch(); InputError for a variant without a kernel, or one that needs what the
  ///          GPU lacks.
  void launch_variant(const LoraVariant& variant, const LoraTensors& tensors,
                      const SegmentView& segments, CUstream_st* stream,
                      LaunchOrder order = LaunchOrder::after_previous) const;

  /// What launch_silu_mul() should launch. Nothing if it cannot: it needs a linear whose two equal
  /// slices fill y, aligned tensors of one dtype, y among them, a workspace and ranks of up to 512
  /// together. 8-bit weights are supported beside 16-bit x. Not for experts.
  /// `next`: the linear whose x the activation is, if its shrink may be part of that.
  std::optional<SiluMulVariants> silu_mul_variants_for(const LoraTensors& tensors,
                                                       const DeviceView& activation,
                                                       const LoraLayer* next = nullptr) const;

  /// activation [T, N_0] = silu_mul() of y as a linear would leave it, also in rows that no segment
  /// covers. It must not overlap y. Segments are those of build() or DeviceSegmentBuilder, made
  /// from the slots of all T rows, and their size is that of variants.shrink. All else as launch().
  /// With shrinks_next, y holds what next->launch_behind_splits() needs afterwards.
  void launch_silu_mul(const SiluMulVariants& variants, const LoraTensors& tensors,
                       const DeviceView& activation, const SegmentView& segments,
                       CUstream_st* stream, LaunchOrder order = LaunchOrder::after_previous,
                       const LoraLayer* next = nullptr) const;

  /// A linear whose shrink launch_silu_mul() did, as part of the layer before. `splits`: the y of
  /// that launch, and segments are the same. All else as launch(), the bits too.
  void launch_behind_splits(const LoraTensors& tensors, const DeviceView& splits,
                            const SegmentView& segments, CUstream_st* stream,
                            LaunchOrder order = LaunchOrder::after_previous) const;

  LoraVariant variant_for(const LoraTensors& tensors) const;
  LoraPath path_for(const LoraTensors& tensors) const;
  /// Whether the product of x is to leave SMs idle for the shrink; never without split_sums.
  bool gains_by_idle_sms(const LoraTensors& tensors) const;
  int64_t num_columns() const { return num_columns_; }
  int64_t num_slots() const { return num_slots_ * desc_.experts.num_experts; }
  int64_t max_rank() const { return max_rank_; }

 private:
  bool shrinks() const { return gpu::shrinks(desc_.op); }
  bool expands() const { return gpu::expands(desc_.op); }
  void require(bool ok, const std::string& place, const std::string& rule) const;
  void check_view(const std::string& place, const DeviceView& view, int num_axes,
                  bool may_be_8_bit = false) const;
  void check_slice(const std::string& place, const LoraSliceDesc& slice) const;
  void check_experts() const;
  void check_weight(const std::string& place, const DeviceView& weight) const;
  void add_slice(size_t i);
  bool are_aligned(const LoraTensors& tensors) const;
  LoraDtypes dtypes(const LoraTensors& tensors) const;
  int64_t num_tokens(const LoraTensors& tensors) const;
  void check_x(const DeviceView& x) const;
  void check_h(const LoraTensors& tensors) const;
  void check_y(const LoraTensors& tensors) const;
  void check_tensors(const LoraTensors& tensors, const SegmentView& segments) const;
  bool has_workspace(int64_t num_tokens) const;
  void set_split_sums();
  /// That a step may have, times the experts.
  int64_t most_slots(const LoraTensors& tensors) const;
  LaunchShape shape_of(const LoraTensors& tensors) const;
  void check_variant(const LoraVariant& variant, LoraPath path, const LoraTensors& tensors) const;
  KernelParams params(const LoraTensors& tensors, const SegmentView& segments) const;
  void set_h(const LoraVariant& variant, KernelParams& out) const;
  void set_items(LoraOp op, const LoraVariant& variant, KernelParams& out) const;
  void fuse_slices(const LoraVariant& variant, int64_t num_tokens, KernelParams& out) const;
  int32_t parts_per_segment(const LoraVariant& variant, const SegmentView& segments) const;
  void launch_both(const LoraLaunch& launch, LoraOp expand_op, const LoraVariant& expand) const;

  // Of gate and up: lora_silu_mul.cpp.
  bool is_gate_and_up() const;
  bool both_h_fit() const;
  bool can_be_shrunk_before() const;
  bool can_shrink(const LoraLayer& next) const;
  bool can_end_with_silu_mul(const LoraTensors& tensors, const DeviceView& activation) const;
  void check_activation(const LoraTensors& tensors, const DeviceView& activation) const;
  void check_kernel(LoraOp op, const LoraVariant& variant) const;
  void check_variants(const SiluMulVariants& variants, const SegmentView& segments) const;

  // Of 8-bit weights: quantized_layer.cpp.
  bool has_8_bits() const { return is_quantized(weight_); }
  void check_mode() const;
  void add_factors(size_t i);
  WeightScale weight_scale(const std::string& place, const DeviceView& weight,
                           const DeviceView& scale, const reference::BlockSize& block) const;
  void check_factor_view(const std::string& place, const DeviceView& scale, int num_axes) const;
  ActivationScale activation_scale(const std::string& place, const DeviceView& scale,
                                   const DeviceView& bits, int64_t block_k) const;
  void check_factors(const LoraTensors& tensors) const;
  void check_pair(const std::string& place, reference::Dtype weight,
                  reference::Dtype activations) const;
  reference::Dtype h_dtype(const LoraTensors& tensors) const;
  LoraPath shrink_path(const LoraTensors& tensors) const;
  bool fits_one_launch(const LoraTensors& tensors) const;
  LoraPath expand_path(const LoraTensors& tensors, reference::Dtype h) const;
  QuantizedParams quantized_params(const LoraTensors& tensors, const SegmentView& segments) const;
  void launch_8_bits(const LoraVariant& variant, const LoraTensors& tensors,
                     const SegmentView& segments, CUstream_st* stream, LaunchOrder order) const;
  void launch_stage(LoraOp op, LoraPath path, const LoraVariant& variant, QuantizedParams& params,
                    CUstream_st* stream, LaunchOrder order) const;
  struct Stages {
    LoraVariant shrink, expand;
    LoraOp expand_op = LoraOp::expand;
  };
  void launch_linear(const Stages& stages, const LoraTensors& tensors, QuantizedParams& params,
                     CUstream_st* stream, LaunchOrder order) const;
  void launch_8_bit_silu_mul(const SiluMulVariants& variants, const LoraTensors& tensors,
                             const DeviceView& activation, const SegmentView& segments,
                             CUstream_st* stream, LaunchOrder order) const;
  struct HRows {
    int64_t num_tokens;
    int32_t segment_size;
    bool by_tensor;
  };
  void quantize_h(const HRows& of, QuantizedParams& params, CUstream_st* stream) const;

  LoraLayerDesc desc_;
  KernelParams params_;  // all but the tensors, segments and work items
  reference::Dtype weight_ = reference::Dtype::bf16;
  int64_t num_slots_ = 0;
  int64_t max_rank_ = 0;
  int64_t num_rank_tiles_ = 0;  // of 16 ranks, of all slices
  int64_t num_columns_ = 0;
  int64_t num_split_units_ = 0;
  bool weights_aligned_ = true;
  QuantizedSliceParams of_8_bits_[kMaxSlices];
};

}  // namespace loratory::gpu
