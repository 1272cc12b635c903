#pragma once

#include <utility>

#include "check/cases/case_data.hpp"

namespace loratory::check {

/// The tensors of one stretch: x [1, K], A and B of one slot [1, r, K] and [1, N, r].
struct OneRow {
  const CaseData& data;
  const StepData& step;
  const Stretch& at;

  const Case& c() const { return data.shape; }
  int64_t token() const { return at.row / c().experts_per_token; }
  int32_t rank() const { return data.rank(size_t(at.slice), at.slot, at.expert); }
  const SliceData& slice() const { return data.slices[size_t(at.slice)]; }
  size_t pair() const { return size_t(at.slot) * size_t(c().num_experts) + size_t(at.expert); }

  static reference::ConstTensorView one(reference::ConstTensorView of) {
    of.shape.insert(of.shape.begin(), 1);
    of.strides.insert(of.strides.begin(), 0);
    return of;
  }
  reference::ConstTensorView of_slot(const reference::Tensor& weight) const {
    const reference::ConstTensorView view = weight.view();
    return c().has_experts() ? view[at.slot][at.expert] : view[at.slot];
  }
  reference::ConstTensorView a() const {
    if (!data.stacked_a) return of_slot(*slice().a).part(0, 0, rank());
    return std::as_const(*data.stacked_a)
        .view()[at.slot]
        .part(0, at.slice * rank(), (at.slice + 1) * rank());
  }
  reference::ConstTensorView b() const {
    if (!data.stacked_b) return of_slot(*slice().b).part(1, 0, rank());
    const int64_t first = at.first - c().offset_start;
    return std::as_const(*data.stacked_b)
        .view()[at.slot]
        .part(0, first, first + at.count)
        .part(1, 0, rank());
  }
  reference::ConstTensorView x() const {
    return std::as_const(*step.x).view()[c().x_by_row ? at.row : token()];
  }
  reference::ConstTensorView h() const {
    return std::as_const(*step.h).view()[at.slice][at.row].part(0, 0, rank());
  }
  // The oracles read it as base and do not write it.
  reference::TensorView y() const {
    reference::TensorView of = const_cast<reference::Tensor&>(*step.y).view();
    of = of.part(0, at.row, at.row + 1).part(1, at.first, at.first + at.count);
    return of;
  }
};

}  // namespace loratory::check
