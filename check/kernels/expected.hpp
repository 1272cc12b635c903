#pragma once

#include <cstdint>
#include <vector>

#include "check/cases/case_data.hpp"
#include "check/loratory_plugin.h"
#include "reference/numerics/error_bound.hpp"

namespace loratory::check {

/// How the kernel says that it computes a case.
reference::Arithmetic arithmetic_of(const Case& c, const LoratoryClaims& claims);

/// What a step covers, and what should be there: values of all stretches one behind the other.
class Expected {
 public:
  /// with_bounds false: only what is covered. Cost as the oracle of the operation in reference/.
  Expected(const CaseData& data, const StepData& step, const LoratoryClaims& claims,
           bool with_bounds);

  const std::vector<Stretch>& stretches() const { return stretches_; }
  /// The stretch of a row and slice, or -1 where nothing is covered.
  int64_t find(int64_t row, int64_t slice) const;
  /// These two need bounds.
  double exact(int64_t stretch, int64_t i) const {
    return exact_[size_t(begins_[size_t(stretch)] + i)];
  }
  double bound(int64_t stretch, int64_t i) const {
    return bound_[size_t(begins_[size_t(stretch)] + i)];
  }
  int64_t num_values() const { return num_values_; }

 private:
  std::vector<Stretch> stretches_;
  std::vector<int64_t> begins_;
  std::vector<int32_t> index_;  // [rows][slices]
  int64_t num_slices_ = 0, num_values_ = 0;
  std::vector<double> exact_, bound_;
};

/// May a shrink write `value` to h[·, row, ·] beyond the rank? One that multiplies all ranks gets
/// zeros for those that an adapter has not, or NaN where x is NaN. Not in rows without adapter or
/// expert, and only where the data has zeros beyond the ranks.
bool may_write_beyond_rank(const CaseData& data, const StepData& step, int64_t row, double value);

}  // namespace loratory::check
