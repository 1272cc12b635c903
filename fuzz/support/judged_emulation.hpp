#pragma once

#include <vector>

#include "check/statistics/statistical_judge.hpp"
#include "fuzz/support/emulated_lora.hpp"

namespace loratory::check {

/// What the statistical lane says of an emulated implementation, right or with a fault.
inline StatisticalVerdict judged(const reference::EmulatedCase& c,
                                 const reference::SliceNumbers& numbers, reference::Fault fault,
                                 double level = 1e-9) {
  const std::vector<float> y = emulate(c, numbers, fault);
  const reference::SliceModel model(numbers.a, numbers.b, numbers.rank, numbers.scaling,
                                    c.arithmetic);
  StatisticalJudge judge(c.arithmetic, level);
  std::vector<double> x(size_t(numbers.num_in));
  for (int64_t t = 0; t < numbers.num_tokens; ++t) {
    for (size_t k = 0; k < x.size(); ++k) x[k] = numbers.x[size_t(t) * x.size() + k];
    std::vector<reference::DeltaModel> row = model.of_row(x);
    for (size_t n = 0; n < row.size(); ++n) {
      const size_t at = size_t(t) * row.size() + n;
      row[n].base = numbers.base[at];
      judge.add(t, row[n], y[at], t, int64_t(n));
    }
  }
  return judge.verdict();
}

}  // namespace loratory::check
