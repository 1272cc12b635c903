#pragma once

#include "reference/engines/stacked.hpp"
#include "reference/layout/chunked_layout.hpp"

namespace loratory::reference {

/// The operations of SGLang's chunked SGMV backend on the arrays of a ChunkedLayout: segment s is
/// the rows permutation[seg_indptr[s]] .. of slot weight_indices[s], rank and scaling of the slot.
///
/// Base      a slot of rank 0, whose segments do nothing. Empty segments do nothing either.
/// Layout    is believed: a row in no segment keeps its y, a row in two gets its delta twice.
/// Results   bits of lora_linear() in the same mode, for any segment size.
/// Lifetime  the layout must outlive this object.
/// Errors    InputError: arrays that do not fit together, and as stacked_shrink, stacked_expand.
/// Source    statements [2.17]-[2.23]; SGLang, lora/backend/chunked_backend.py.
class ChunkedSgmv {
 public:
  explicit ChunkedSgmv(const ChunkedLayout& layout, NumericMode mode = kSglangMode);

  /// h [T, S·R] of the A's of `num_slices` slices, [L, S·R, K].
  void run_lora_a_sgemm(const ConstTensorView& x, const ConstTensorView& a, int64_t num_slices,
                        const TensorView& h) const;
  /// y [T, N] += delta of one slice.
  void run_lora_b_sgemm(const ConstTensorView& h, const ConstTensorView& b,
                        const TensorView& y) const;
  /// Both for q, k and v; sizes may be ragged.
  void run_qkv_lora(const ConstTensorView& x, const StackedWeights& qkv, const TensorView& y) const;
  /// Both for gate and up, which are of one size.
  void run_gate_up_lora(const ConstTensorView& x, const StackedWeights& gate_up,
                        const TensorView& y) const;

 private:
  SlotRows segment(size_t s) const;
  void run_stacked(const ConstTensorView& x, const StackedWeights& weights,
                   const TensorView& y) const;
  void expand(const ConstTensorView& h, const ConstTensorView& b,
              std::span<const int64_t> output_offset, const TensorView& y) const;

  const ChunkedLayout& layout_;
  NumericMode mode_;
};

/// What a captured graph reads: arrays of fixed size, of which a step fills the first part. Writes
/// every element: segments past the step's are empty and of `base_slot`, rows past its are row 0.
/// Errors   InputError: the step has more tokens or segments, or base_slot has a rank.
/// Source   statement [2.23]; stale segments of a bigger step reach rows of other requests.
void refresh_for_replay(const ChunkedLayout& step, int32_t max_tokens, int32_t max_segments,
                        int32_t base_slot, ChunkedLayout& captured);

}  // namespace loratory::reference
