#pragma once

#include "reference/lora/delta_model.hpp"

namespace loratory::check {

/// How y comes from delta: y = round_out(fp32(base + round_kept(delta))), kept none with one_round.
/// Never falling in delta, so that the deltas that give one y are an interval.
class ResultRounding {
 public:
  explicit ResultRounding(const reference::Arithmetic& arithmetic);

  double operator()(double base, double delta) const;
  reference::Dtype out() const { return out_; }

  /// How far delta must have been off, at least, to give `got`: signed, 0 where it need not have
  /// been. Its absolute value never exceeds that of the error, so roundings of y and of delta,
  /// which are no errors, cost nothing. Exact to `step`.
  double excess(const reference::DeltaModel& model, double got, double step) const;

 private:
  bool rounds_delta_;
  reference::Dtype kept_, out_;
};

}  // namespace loratory::check
