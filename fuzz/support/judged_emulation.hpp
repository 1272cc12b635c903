#pragma once

#include <vector>

#include "check/statistics/statistical_judge.hpp"
#include "fuzz/support/emulated_lora.hpp"

namespace loratory::check {

/// The models of all elements, row by row.
inline std::vector<reference::DeltaModel> models_of(const reference::EmulatedCase& c,
                                                    const reference::SliceNumbers& numbers) {
  const reference::SliceModel model(numbers.a, numbers.b, numbers.rank, numbers.scaling,
                                    c.arithmetic);
  std::vector<reference::DeltaModel> out;
  for (int64_t t = 0; t < numbers.num_tokens; ++t) {
    const auto first = numbers.x.begin() + t * numbers.num_in;
    const std::vector<double> x(first, first + numbers.num_in);
    for (reference::DeltaModel& element : model.of_row(x)) {
      element.base = numbers.base[out.size()];
      out.push_back(element);
    }
  }
  return out;
}

/// What the statistical lane says of an emulated implementation, right or with a fault.
inline StatisticalVerdict judged(const reference::EmulatedCase& c,
                                 const reference::SliceNumbers& numbers,
                                 const std::vector<reference::DeltaModel>& models,
                                 reference::Fault fault, double level = 1e-9) {
  const std::vector<float> y = emulate(c, numbers, fault);
  StatisticalJudge judge(c.arithmetic, level);
  for (size_t i = 0; i < y.size(); ++i) {
    const auto row = int64_t(i) / numbers.num_out, column = int64_t(i) % numbers.num_out;
    judge.add(row, models[i], y[i], row, column);
  }
  return judge.verdict();
}

}  // namespace loratory::check
