#include "reference/engines/chunked_sgmv.hpp"

#include <algorithm>

#include "reference/base/input_error.hpp"

namespace loratory::reference {
namespace {

void check(const ChunkedLayout& l) {
  const size_t num_segments = l.weight_indices.size();
  if (l.seg_indptr.size() != num_segments + 1) {
    throw InputError("seg_indptr", "must have one element more than weight_indices");
  }
  if (l.seg_indptr.front() < 0 || l.seg_indptr.back() > int32_t(l.permutation.size()) ||
      !std::is_sorted(l.seg_indptr.begin(), l.seg_indptr.end())) {
    throw InputError("seg_indptr", "does not ascend within the permutation");
  }
  if (l.lora_ranks.size() != l.scalings.size()) {
    throw InputError("lora_ranks, scalings", "have different lengths");
  }
  for (const int32_t slot : l.weight_indices) {
    if (slot < 0 || slot >= int32_t(l.lora_ranks.size())) {
      throw InputError("weight_indices", "name a slot without a rank");
    }
  }
}

}  // namespace

ChunkedSgmv::ChunkedSgmv(const ChunkedLayout& layout, NumericMode mode)
    : layout_(layout), mode_(mode) {
  check(layout);
}

SlotRows ChunkedSgmv::segment(size_t s) const {
  const int32_t slot = layout_.weight_indices[s];
  const auto begin = size_t(layout_.seg_indptr[s]), end = size_t(layout_.seg_indptr[s + 1]);
  return {slot, layout_.lora_ranks[size_t(slot)], layout_.scalings[size_t(slot)],
          std::span(layout_.permutation).subspan(begin, end - begin)};
}

void ChunkedSgmv::run_lora_a_sgemm(const ConstTensorView& x, const ConstTensorView& a,
                                   int64_t num_slices, const TensorView& h) const {
  for (size_t s = 0; s < layout_.weight_indices.size(); ++s) {
    const SlotRows part = segment(s);
    if (part.rank == 0 || part.rows.empty()) continue;
    stacked_shrink(x, a, num_slices, part, h);
  }
}

void ChunkedSgmv::expand(const ConstTensorView& h, const ConstTensorView& b,
                         std::span<const int64_t> output_offset, const TensorView& y) const {
  for (size_t s = 0; s < layout_.weight_indices.size(); ++s) {
    const SlotRows part = segment(s);
    if (part.rank == 0 || part.rows.empty()) continue;
    stacked_expand(h, b, output_offset, part, mode_, y);
  }
}

void ChunkedSgmv::run_lora_b_sgemm(const ConstTensorView& h, const ConstTensorView& b,
                                   const TensorView& y) const {
  const int64_t output_offset[] = {0, b.size(1)};
  expand(h, b, output_offset, y);
}

void ChunkedSgmv::run_stacked(const ConstTensorView& x, const StackedWeights& weights,
                              const TensorView& y) const {
  Tensor h = stacked_buffer(x, weights, mode_);
  run_lora_a_sgemm(x, weights.a, weights.num_slices(), h.view());
  expand(h.view(), weights.b, weights.output_offset, y);
}

void ChunkedSgmv::run_qkv_lora(const ConstTensorView& x, const StackedWeights& qkv,
                               const TensorView& y) const {
  if (qkv.num_slices() != 3) throw InputError("qkv", "must have three slices");
  run_stacked(x, qkv, y);
}

void ChunkedSgmv::run_gate_up_lora(const ConstTensorView& x, const StackedWeights& gate_up,
                                   const TensorView& y) const {
  const std::vector<int64_t>& at = gate_up.output_offset;
  if (at.size() != 3 || at[1] - at[0] != at[2] - at[1]) {
    throw InputError("gate_up", "must have two slices of one size");
  }
  run_stacked(x, gate_up, y);
}

void refresh_for_replay(const ChunkedLayout& step, int32_t max_tokens, int32_t max_segments,
                        int32_t base_slot, ChunkedLayout& captured) {
  check(step);
  if (int64_t(step.permutation.size()) > max_tokens ||
      int64_t(step.weight_indices.size()) > max_segments) {
    throw InputError("step", "has more tokens or segments than were captured");
  }
  if (base_slot < 0 || base_slot >= int32_t(step.lora_ranks.size()) ||
      step.lora_ranks[size_t(base_slot)] != 0) {
    throw InputError("base_slot", "is not a slot of rank 0");
  }
  captured = step;
  captured.permutation.resize(size_t(max_tokens), 0);
  captured.weight_indices.resize(size_t(max_segments), base_slot);
  captured.seg_indptr.resize(size_t(max_segments) + 1, step.seg_indptr.back());
}

}  // namespace loratory::reference
